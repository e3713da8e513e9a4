"""The derived body of a loop for each of its turns, from the last to the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft_graph.attributes import as_body, as_int, as_ints
from weft_graph.ir import AttributeValue
from weft_graph.shapes.scanning import scanned
from weft_graph.types import array_type
from weft_kernels.arguments import required
from weft_kernels.body import Body
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.stacks import Whole, empty, part_of, turns_of


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
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
