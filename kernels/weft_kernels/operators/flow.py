"""Control flow: If, Loop, Scan, and loops run backwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from weft_graph.attributes import as_body, as_int, as_ints
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.operators.flow import MOST_PART_BYTES, MOST_PARTS
from weft_graph.shapes.bodies import Scanned, scanned
from weft_graph.types import TensorType, array_text, array_type
from weft_kernels.arguments import optional, required
from weft_kernels.body import Body
from weft_kernels.host import number
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.run import run_body

# --- Puts what the turns of a loop make together along an axis --------------------------------------------------------


class Whole:
    """The parts of a known number of turns, each written to its place as it comes."""

    def __init__(self, xp: Any, how: Scanned, turns: int, name: str) -> None:
        self._xp = xp
        self._how = how
        self._turns = turns
        self._name = name
        self._array: Array | None = None
        self._shape: tuple[int, ...] = ()

    def put(self, turn: int, part: Array) -> None:
        """Raises ValueError where the part is of another type than those before."""
        axis = self._how.axis
        if self._array is None:
            self._shape = part.shape
            shape = (*part.shape[:axis], self._turns, *part.shape[axis:])
            self._array = self._xp.empty(shape, dtype=part.dtype)
        check_alike(self._name, turn, self._shape, self._array, part)
        self._array[_index(self._how, turn, self._turns)] = part

    def array(self) -> Array:
        """The parts together, once every turn's is there."""
        assert self._array is not None, "no turn has put a part"
        return self._array


def empty(xp: Any, how: Scanned, part: TensorType) -> Array:
    """What no turns make."""
    shape = (*part.static_shape[: how.axis], 0, *part.static_shape[how.axis :])
    return xp.empty(shape, dtype=part.dtype.numpy)  # type: ignore[no-any-return]  # xp is Any


def check_alike(name: str, turn: int, shape: tuple[int, ...], first: Array, part: Array) -> None:
    """Raises ValueError where a turn makes another shape or element type than the turns before it."""
    if part.shape != shape or part.dtype != first.dtype:
        raise ValueError(
            f"{name!r} is {array_text(part)} in turn {turn}, and was of shape {list(shape)} and {first.dtype} before: "
            "parts of one value must be alike"
        )


def part_of(array: Array, how: Scanned, turn: int, turns: int) -> Array:
    """This turn's part of a scanned value, a view."""
    part: Array = array[_index(how, turn, turns)]
    return part


def _index(how: Scanned, turn: int, turns: int) -> Any:
    # The dots keep a part of no dimensions an array.
    return (*(slice(None),) * how.axis, how.place(turn, turns), ...)


def turns_of(arrays: Sequence[Array], along: Sequence[Scanned]) -> int:
    """How many parts the arrays have. Raises ValueError where they differ."""
    counts = {array.shape[how.axis] for array, how in zip(arrays, along, strict=True)}
    if len(counts) != 1:
        raise ValueError(f"what is scanned must be as long in each value, and has {sorted(counts)} parts")
    return int(counts.pop())


@kernel("If", host_inputs=(0,), waits=True)
def if_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """One of two bodies; the other is not run."""
    condition, *captured = required(inputs)
    if condition.size != 1:
        raise ValueError(f"the condition must be one element, and has {condition.size}")
    branch = "then_branch" if condition.reshape(-1)[0] else "else_branch"
    return run_body(context, as_body(attributes[branch]), captured)


_ROWS = Scanned(0, backwards=False)


@kernel("Loop", host_inputs=(0, 1), waits=True)
def loop(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A body again and again, while its condition holds."""
    xp, subgraph = context.xp, as_body(attributes["body"])
    limit, condition = optional(inputs, 0), optional(inputs, 1)
    states = len(subgraph.inputs) - 2
    given = required(inputs[2:])
    carried: tuple[Array, ...] = given[:states]
    body = Body(context, subgraph, given[states:])
    # A turn runs only where the condition holds: what the body reads is true.
    holds = xp.ones(() if condition is None else condition.shape, dtype=bool)
    parts: list[list[Array]] = [[] for _ in subgraph.outputs[1 + states :]]
    held = 0
    goes_on = condition is None or _one(np, condition, "cond")
    for turn in count() if limit is None else range(int(_one(np, limit, "M"))):
        if not goes_on:
            break
        condition_out, *outputs = body((xp.asarray(turn, dtype=xp.int64), holds, *carried), turn)
        carried = tuple(outputs[:states])
        if parts and turn >= MOST_PARTS:
            raise ValueError(f"it gives a part for each turn, which at most {MOST_PARTS} turns may, and has not ended")
        for made, name, part in zip(parts, subgraph.outputs[1 + states :], outputs[states:], strict=True):
            check_alike(name, turn, (made[0] if made else part).shape, made[0] if made else part, part)
            made.append(part)
            held += part.nbytes
        if held > MOST_PART_BYTES:
            raise ValueError(f"its turns' parts take more than {MOST_PART_BYTES} bytes, and it has not ended")
        goes_on = _one(xp, condition_out, subgraph.outputs[0])
    if parts and not parts[0]:
        first = array_type(np.empty((), np.int64)), array_type(np.empty(holds.shape, bool))
        types = body.types((*first, *map(array_type, carried)))
        return (*carried, *(empty(xp, _ROWS, type_) for type_ in types[1 + states :]))
    return (*carried, *(xp.stack(made) for made in parts))


def _one(xp: object, array: Array, name: str) -> int:
    if array.size != 1:
        raise ValueError(f"{name} must be one element, and has {array.size}")
    return int(number(xp, array.reshape(-1)[0]))


@kernel("LoopGrad", domain=WEFT_DOMAIN, waits=True)
def loop_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The derived body of a loop for each of its turns, from the last to the first."""
    xp, subgraph = context.xp, as_body(attributes["body"])
    given, count = required(inputs), as_int(attributes["carried"])
    carried, whole = given[:count], given[count : len(subgraph.inputs)]
    captured = given[len(subgraph.inputs) :]
    along = scanned(*_lists(attributes, "input"), [array.ndim for array in whole])
    turns = turns_of(whole, along)
    body = Body(context, subgraph, captured)
    sums = [_Sum(xp, captured[place]) for place in as_ints(attributes["summed"])]
    end = len(subgraph.outputs) - len(sums)
    made: list[Whole] = []
    for turn in reversed(range(turns)):
        parts = (part_of(array, how, turn, turns) for array, how in zip(whole, along, strict=True))
        outputs = body((*carried, *parts), turn)
        carried = outputs[:count]
        if not made:
            together = scanned(*_lists(attributes, "output"), [part.ndim + 1 for part in outputs[count:end]])
            names = subgraph.outputs[count:end]
            made = [Whole(xp, how, turns, name) for how, name in zip(together, names, strict=True)]
        for stack, part in zip(made, outputs[count:end], strict=True):
            stack.put(turn, part)
        for total, part in zip(sums, outputs[end:], strict=True):
            total.add(part)
    if turns:
        return (*carried, *(stack.array() for stack in made), *(total.array() for total in sums))
    types = body.types(
        (*map(array_type, carried), *(how.part(array_type(a)) for a, how in zip(whole, along, strict=True)))
    )
    together = scanned(*_lists(attributes, "output"), [type_.rank + 1 for type_ in types[count:end]])
    nothing = (empty(xp, how, type_) for how, type_ in zip(together, types[count:end], strict=True))
    return (*carried, *nothing, *(total.array() for total in sums))


def _lists(attributes: Mapping[str, AttributeValue], what: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return as_ints(attributes[f"{what}_axes"]), as_ints(attributes[f"{what}_directions"])


class _Sum:
    """What turns add up to, zeros like `like` before the first. The second turn makes the array that is added to."""

    def __init__(self, xp: Any, like: Array) -> None:
        self._xp = xp
        self._like = like
        self._total: Array | None = None
        self._is_own = False

    def add(self, part: Array) -> None:
        if self._total is None:
            self._total = part
        elif self._is_own:
            self._xp.add(self._total, part, out=self._total)
        else:
            # The sum of two arrays without dimensions is no array, and nothing can be added to it in place.
            self._total, self._is_own = self._xp.asarray(self._total + part), True

    def array(self) -> Array:
        return self._xp.zeros_like(self._like) if self._total is None else self._total


@kernel("Scan", waits=True)
def scan(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A body for each part of its inputs along an axis."""
    subgraph = as_body(attributes["body"])
    given = required(inputs)
    states = len(subgraph.inputs) - as_int(attributes["num_scan_inputs"])
    carried, whole = given[:states], given[states : len(subgraph.inputs)]
    body = Body(context, subgraph, given[len(subgraph.inputs) :])
    along = _scanned(attributes, "scan_input", [array.ndim for array in whole])
    turns = turns_of(whole, along)
    if turns == 0:
        return (*carried, *_nothing(context, body, attributes, (carried, whole, along)))
    made: list[Whole] = []
    for turn in range(turns):
        parts = (part_of(array, how, turn, turns) for array, how in zip(whole, along, strict=True))
        outputs = body((*carried, *parts), turn)
        carried = outputs[:states]
        if turn == 0:
            together = _scanned(attributes, "scan_output", [part.ndim + 1 for part in outputs[states:]])
            names = subgraph.outputs[states:]
            made = [Whole(context.xp, how, turns, name) for how, name in zip(together, names, strict=True)]
        for stack, part in zip(made, outputs[states:], strict=True):
            stack.put(turn, part)
    return (*carried, *(stack.array() for stack in made))


def _nothing(
    context: KernelContext,
    body: Body,
    attributes: Mapping[str, AttributeValue],
    given: tuple[Sequence[Array], Sequence[Array], Sequence[Scanned]],
) -> list[Array]:
    """The scan outputs of no turns."""
    carried, whole, along = given
    parts = (how.part(array_type(array)) for array, how in zip(whole, along, strict=True))
    types = body.types((*map(array_type, carried), *parts))[len(carried) :]
    together = _scanned(attributes, "scan_output", [type_.rank + 1 for type_ in types])
    return [empty(context.xp, how, type_) for how, type_ in zip(together, types, strict=True)]


def _scanned(attributes: Mapping[str, AttributeValue], what: str, ranks: Sequence[int]) -> tuple[Scanned, ...]:
    axes, directions = (as_ints(attributes.get(f"{what}_{list_}", ())) for list_ in ("axes", "directions"))
    return scanned(axes, directions, ranks)
