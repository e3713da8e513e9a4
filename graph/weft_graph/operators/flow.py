"""Control flow: If, Loop, Scan, and loops run backwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from weft_graph.attributes import as_body, as_int, as_ints
from weft_graph.dimensions import Dim, is_unknown
from weft_graph.formals import ANY, BOOLEANS, INT64, optional, required, rest
from weft_graph.ir import WEFT_DOMAIN, AttributeValue, Subgraph
from weft_graph.schema import Attribute, BodyDerivation, GradientContext, InferContext, OpSchema
from weft_graph.shapes.bodies import (
    Scanned,
    infer_reads,
    infer_scanned,
    infer_turns,
    is_one,
    joined,
    kept,
    passed_on,
    scanned,
    settle_carried,
)
from weft_graph.shapes.gradients import refusal
from weft_graph.types import DType, TensorType

# ----------------------------------------------------------------------------------------------------------------------
# The gradient of Loop and Scan: LoopGrad, which runs the derived body once for each turn, from the last to the first.
#
# The way forward is made to keep, of each turn, what the derived body reads of what the turn began with.


@dataclass(frozen=True, slots=True)
class Repeated:
    """How an operator repeats its body.

    `types` are those of what the body reads, inputs and captured values. `before` counts its inputs before the states,
    which are `states` many, and `condition` its outputs before them; `scanned` says how the inputs behind the states
    are taken apart, and `together` how the outputs behind them are put together. `turns` are known to be taken at
    least.
    """

    types: Sequence[TensorType]
    before: int
    states: int
    condition: int
    scanned: Sequence[Scanned]
    together: Sequence[Scanned]
    turns: int = 0


def repeated_gradient(
    context: GradientContext, how: Repeated, kept: dict[str, AttributeValue]
) -> tuple[str | None, ...]:
    """The gradients of the node's inputs. `kept` are attributes of scan outputs that further ones continue: lists."""
    body = as_body(context.attribute("body"))
    given = [index for index in range(len(context.node.outputs)) if context.gradient(index) is not None]
    carried = {how.condition + state: body.inputs[how.before + state] for state in range(how.states)}
    seeds = [how.condition + index for index in given]
    derived = context.derive("body", how.types, seeds, carried, may_not_run=how.turns < 1)
    return _Turned(context, how, body, derived).gradients(kept)


@dataclass(frozen=True, slots=True)
class _Turned:
    """The loop that runs backwards, as it is put together."""

    context: GradientContext
    how: Repeated
    body: Subgraph
    derived: BodyDerivation

    def gradients(self, kept: dict[str, AttributeValue]) -> tuple[str | None, ...]:
        body, how, derived = self.body, self.how, self.derived
        reads = (*body.inputs, *body.captured)
        states = [state for state in range(how.states) if how.condition + state in derived.seeds]
        parts = [place for place in range(len(how.together)) if how.condition + how.states + place in derived.seeds]
        flows = [place for place, name in enumerate(reads) if self._flows(place, name)]
        scanned = [place for place in flows if how.before + how.states <= place < len(body.inputs)]
        captured = [place for place in flows if place >= len(body.inputs)]
        outputs = [self._begun(state) for state in states]
        outputs += [derived.gradient(reads[place]) or "" for place in (*scanned, *captured)]
        needed = derived.reads(outputs)
        stacked = self._stacked(needed, parts, kept)
        summed_like = [
            name for name in body.captured if name in needed or len(body.inputs) + body.captured.index(name) in captured
        ]
        seeds = [derived.seeds[how.condition + state] for state in states]
        turned = derived.closed([*seeds, *(name for name, _, _ in stacked)], summed_like, outputs)
        results = self.context.emit(
            "LoopGrad",
            (
                *(self._final(state) for state in states),
                *(value for _, value, _ in stacked),
                *(self._outer(name) for name in summed_like),
            ),
            {
                "body": turned,
                "carried": len(states),
                **_ways("input", [way for _, _, way in stacked]),
                **_ways("output", [how.scanned[place - how.before - how.states] for place in scanned]),
                "summed": tuple(summed_like.index(reads[place]) for place in captured),
            },
            domain=WEFT_DOMAIN,
            outputs=len(outputs),
        )
        found: list[str | None] = [None] * len(self.context.node.inputs)
        for place, gradient in zip(
            (*(how.before + state for state in states), *scanned, *captured), results, strict=True
        ):
            found[place] = gradient
        return tuple(found)

    def _flows(self, place: int, name: str) -> bool:
        return self.context.needs(place) and self.derived.gradient(name) is not None

    def _begun(self, state: int) -> str:
        """The gradient of what a turn begins with; zeros are made like what needs not be kept, where that will do."""
        name = self.body.inputs[self.how.before + state]
        after = self.derived.seeds[self.how.condition + state]
        return self.derived.gradient(name) or self.derived.zeros(after if self._is_steady(state) else name)

    def _is_steady(self, state: int) -> bool:
        """Whether the state has the same shape before all turns and after them."""
        before, after = (
            self.context.type_of(self.context.input(self.how.before + state)),
            self.context.output_type(state),
        )
        return before.shape == after.shape and not any(map(is_unknown, before.shape))

    def _outer(self, name: str) -> str:
        return self.context.input((*self.body.inputs, *self.body.captured).index(name))

    def _final(self, state: int) -> str:
        return self.context.gradient(state) or self.context.zeros(self.context.output(state))

    def _stacked(
        self, needed: set[str], parts: Sequence[int], kept: dict[str, AttributeValue]
    ) -> list[tuple[str, str, Scanned]]:
        """(name in the body, value, how it is taken apart) of all that has a part for each turn, never nothing."""
        how, body = self.how, self.body
        first = how.before + how.states
        scanned = list(zip(body.inputs[first:], how.scanned, strict=True))
        stacked = [
            (name, self._outer(name), way) for place, (name, way) in enumerate(scanned) if name in needed or place == 0
        ]
        saved = [
            (place, name)
            for place, name in enumerate(body.inputs[:first])
            if name in needed or (place == 0 and not stacked)
        ]
        for place, name in saved:
            self._check_steady(place, name)
        values = self._saved([name for _, name in saved], kept) if saved else ()
        stacked += [(name, value, Scanned(0, backwards=False)) for (_, name), value in zip(saved, values, strict=True)]
        for place in parts:
            output = how.condition + how.states + place
            gradient = self.context.gradient(how.states + place)
            assert gradient is not None, "an output has a gradient of its own, or gets one at the next turn"
            stacked.append((self.derived.seeds[output], gradient, how.together[place]))
        return stacked

    def _saved(self, names: Sequence[str], kept: dict[str, AttributeValue]) -> tuple[str, ...]:
        """What each turn began with, as further outputs of the way forward."""
        body = self.body
        longer = Subgraph(body.inputs, body.captured, body.nodes, (*body.outputs, *names), body.constants)
        zeros = (0,) * len(names)
        lists = {name: (*value, *zeros) for name, value in kept.items() if isinstance(value, tuple)}
        return self.context.extend({"body": longer, **lists}, len(names))

    def _check_steady(self, place: int, name: str) -> None:
        """What turns have begun with can be kept together where it is of one shape."""
        if self.how.before <= place:
            before = self.context.type_of(self.context.input(place))
            after = self.how.types[place]
            if before.shape != after.shape and not before.is_known == after.is_known:
                raise refusal(
                    self.context,
                    f"{name!r} is {before} in the first turn and {after} in later ones; the gradient needs what each "
                    "turn began with, in one shape",
                )


def _ways(what: str, ways: Sequence[Scanned]) -> dict[str, AttributeValue]:
    return {
        f"{what}_axes": tuple(way.axis for way in ways),
        f"{what}_directions": tuple(int(way.backwards) for way in ways),
    }


def _infer_if(context: InferContext) -> tuple[TensorType, ...]:
    then, otherwise = (as_body(context.attribute(name)) for name in ("then_branch", "else_branch"))
    if not is_one(context.input(0)):
        raise context.shape_error("the condition must be one element")
    if then.inputs or otherwise.inputs:
        raise context.shape_error("a branch takes no inputs; what it reads from outside it captures")
    if len(then.outputs) != len(otherwise.outputs):
        raise context.shape_error(f"then_branch gives {len(then.outputs)} values, else_branch {len(otherwise.outputs)}")
    _, captured = infer_reads(context, 1, 0, then)
    condition = context.constant(0)
    if condition is not None:
        return context.body(then if condition.reshape(-1)[0] else otherwise, captured)
    pairs = zip(context.body(then, captured), context.body(otherwise, captured), strict=True)
    return tuple(joined(context, a, b, f"output {place}") for place, (a, b) in enumerate(pairs))


def _if_gradient(context: GradientContext) -> tuple[str | None, ...]:
    branches = {name: as_body(context.attribute(name)) for name in ("then_branch", "else_branch")}
    given = [place for place in range(len(context.node.outputs)) if context.gradient(place) is not None]
    condition, *outer = context.node.inputs
    types = [context.type_of(value) for value in outer]
    known = context.known(condition)
    taken = [name for name in branches if known is None or bool(known.reshape(-1)[0]) == (name == "then_branch")]
    derived = {name: context.derive(name, types, given, {}) for name in taken}
    captured = branches["then_branch"].captured
    wanted = [
        place
        for place, name in enumerate(captured)
        if context.needs(1 + place) and any(branch.gradient(name) is not None for branch in derived.values())
    ]
    outputs = {
        taken: [branch.gradient(captured[place]) or branch.zeros(captured[place]) for place in wanted]
        for taken, branch in derived.items()
    }
    seeds = {name: output for branch in derived.values() for output, name in branch.seeds.items()}
    read = {name for taken, branch in derived.items() for name in branch.reads(outputs[taken])}
    kept = [name for name in (*captured, *seeds) if name in read or name in {captured[place] for place in wanted}]
    values = {
        **dict(zip(captured, outer, strict=True)),
        **{name: context.gradient(seeds[name]) or "" for name in seeds},
    }
    closed = {name: branch.closed((), kept, outputs[name]) for name, branch in derived.items()}
    # The body that is not taken is of the right types, and nothing besides.
    never = Subgraph((), tuple(kept), (), tuple(captured[place] for place in wanted))
    results = context.emit(
        "If",
        (condition, *(values[name] for name in kept)),
        {name: closed.get(name, never) for name in branches},
        outputs=len(wanted),
    )
    found: list[str | None] = [None] * (1 + len(outer))
    for place, gradient in zip(wanted, results, strict=True):
        found[1 + place] = gradient
    return tuple(found)


IF = OpSchema(
    op_type="If",
    inputs=(required("cond", BOOLEANS), rest("captured", ANY)),
    outputs=(rest("outputs", ANY),),
    infer=_infer_if,
    gradient=_if_gradient,
    attributes={
        "then_branch": Attribute(Subgraph, required=True),
        "else_branch": Attribute(Subgraph, required=True),
    },
)
"""If: the outputs of one body or of another, as a condition says.

Both bodies take no inputs and capture the same values, which are the node's inputs behind the condition. Where the
condition is known before any step, the body that is not taken counts for nothing: it need not even fit.
"""


MOST_PART_BYTES: Final = 1 << 32
"""Of what all turns give: no estimate knows how often a loop runs whose end only its values decide."""


MOST_PARTS: Final = 1 << 20
"""Turns whose parts a scan output, or what a gradient needs of each turn, may be made of. A loop without scan outputs
may have any number: whoever runs it may end it between two turns."""


_COUNT, _CONDITION = TensorType(DType.INT64, ()), TensorType(DType.BOOL, ())


def _infer_loop(context: InferContext) -> tuple[TensorType, ...]:
    body = as_body(context.attribute("body"))
    limit, condition = context.optional_input(0), context.optional_input(1)
    for name, type_ in (("M", limit), ("cond", condition)):
        if type_ is not None and not is_one(type_):
            raise context.shape_error(f"{name} must be one element, got {type_}")
    initial, captured = infer_reads(context, 2, len(body.inputs) - 2, body)
    if len(body.outputs) < 1 + len(initial):
        raise context.shape_error(
            f"its body carries {len(initial)} values and gives {len(body.outputs)}; it must give a condition and those"
        )
    given = (_COUNT, condition or _CONDITION), captured
    carried, outputs = settle_carried(context, body, given, initial, 1)
    if outputs[0].dtype is not DType.BOOL or not is_one(outputs[0]):
        raise context.dtype_error(f"its body's first output is the condition, one bool, and is {outputs[0]}")
    turns = _turns(context, body)
    return (*carried, *(TensorType(part.dtype, (turns, *part.shape)) for part in outputs[1 + len(initial) :]))


def _turns(context: InferContext, body: Subgraph) -> Dim:
    """How often the body runs: M where the condition always holds, unless that only says that there is no limit."""
    if context.optional_input(0) is None or not _holds(context, body):
        return context.unknown()
    limits = context.dims(0)
    if limits is None or len(limits) != 1:
        return context.unknown()
    if isinstance(limits[0], int):
        return max(limits[0], 0) if limits[0] <= MOST_PARTS else context.unknown()
    return limits[0]


def _holds(context: InferContext, body: Subgraph) -> bool:
    if context.optional_input(1) is not None:
        first = context.constant(1)
        if first is None or not first.all():
            return False
    # What a turn is given as condition is true: it would not run otherwise.
    name = passed_on(body, 0)
    if name == body.inputs[1]:
        return True
    known = next((constant.array for constant in body.constants if constant.name == name), None)
    if name in body.captured:
        place = len(context.node.inputs) - len(body.captured) + body.captured.index(name)
        known = context.constant(place)
    return known is not None and bool(known.all())


def _loop_gradient(context: GradientContext) -> tuple[str | None, ...]:
    body = as_body(context.attribute("body"))
    states, outputs = len(body.inputs) - 2, len(body.outputs) - 1
    condition = context.input(1)
    first = _COUNT, context.type_of(condition) if condition else _CONDITION
    carried = (context.output_type(state) for state in range(states))
    captured = (context.type_of(value) for value in context.node.inputs[2 + states :])
    rows = (Scanned(0, backwards=False),) * (outputs - states)
    turns = _least_turns(context)
    return repeated_gradient(context, Repeated((*first, *carried, *captured), 2, states, 1, (), rows, turns), {})


def _least_turns(context: GradientContext) -> int:
    """1 where the first turn is sure to be taken: only the limit and the first condition keep a loop from it."""
    limit, condition = context.input(0), context.input(1)
    known = [context.known(name) for name in (limit, condition) if name]
    return int(all(array is not None and bool((array > 0).all()) for array in known))


LOOP = OpSchema(
    op_type="Loop",
    inputs=(optional("M", INT64), optional("cond", BOOLEANS), rest("v_initial", ANY)),
    outputs=(rest("v_final_and_scan_outputs", ANY),),
    infer=_infer_loop,
    gradient=_loop_gradient,
    attributes={"body": Attribute(Subgraph, required=True)},
)
"""Loop: a body again and again, at most M times, while a condition holds.

The body takes the turn's number, the condition and what is carried; it gives the condition for the next turn, what is
carried on, and a part of each scan output. Behind M, the condition and the first values of what is carried, the node's
inputs are what the body captures.
"""


def _infer_loop_grad(context: InferContext) -> tuple[TensorType, ...]:
    body, carried = as_body(context.attribute("body")), as_int(context.attribute("carried"))
    given, captured = infer_reads(context, 0, len(body.inputs), body)
    states, whole = given[:carried], given[carried:]
    along = infer_scanned(context, ("input_axes", "input_directions"), [type_.rank for type_ in whole])
    turns = infer_turns(context, whole, along)
    parts = [how.part(type_) for how, type_ in zip(along, whole, strict=True)]
    outputs = context.body(body, (*states, *parts, *captured))
    summed = as_ints(context.attribute("summed"))
    made = outputs[carried : len(outputs) - len(summed)]
    together = infer_scanned(context, ("output_axes", "output_directions"), [part.rank + 1 for part in made])
    wholes = (how.whole(part, turns) for how, part in zip(together, made, strict=True))
    return (*states, *wholes, *(captured[place] for place in summed))


LOOP_GRAD = OpSchema(
    op_type="LoopGrad",
    inputs=(rest("gradients_stacked_and_captured", ANY),),
    outputs=(rest("gradients", ANY),),
    infer=_infer_loop_grad,
    attributes={
        "body": Attribute(Subgraph, required=True),
        "carried": Attribute(int, required=True),
        "input_axes": Attribute(tuple, default=()),
        "input_directions": Attribute(tuple, default=()),
        "output_axes": Attribute(tuple, default=()),
        "output_directions": Attribute(tuple, default=()),
        "summed": Attribute(tuple, default=()),
    },
    domain=WEFT_DOMAIN,
)
"""LoopGrad(gradients of states, stacked values, captured values): the derived body of a Loop or Scan, last turn first.

The body takes the states' gradients, `carried` many, and this turn's part of each stacked value. It gives the states'
gradients for the turn before; a part of each scanned input's gradient; and what the turn adds to the gradients of
captured values, `summed` being their places among these.
"""


def _infer_scan(context: InferContext) -> tuple[TensorType, ...]:
    body, count = as_body(context.attribute("body")), as_int(context.attribute("num_scan_inputs"))
    if not 1 <= count <= len(body.inputs):
        raise context.shape_error(f"num_scan_inputs {count} must be from 1 to the body's {len(body.inputs)} inputs")
    given, captured = infer_reads(context, 0, len(body.inputs), body)
    states, whole = given[: len(given) - count], given[len(given) - count :]
    if len(body.outputs) < len(states):
        raise context.shape_error(f"its body has {len(states)} states and gives {len(body.outputs)} values")
    along = infer_scanned(context, ("scan_input_axes", "scan_input_directions"), [type_.rank for type_ in whole])
    turns = infer_turns(context, whole, along)
    parts = [how.part(type_) for how, type_ in zip(along, whole, strict=True)]
    outputs = context.body(body, (*states, *parts, *captured))
    after = [
        kept(context, before, after, f"the state {name!r}")
        for name, before, after in zip(body.inputs, states, outputs, strict=False)
    ]
    made = outputs[len(states) :]
    ranks = [part.rank + 1 for part in made]
    together = infer_scanned(context, ("scan_output_axes", "scan_output_directions"), ranks)
    return (*after, *(how.whole(part, turns) for how, part in zip(together, made, strict=True)))


def _scan_gradient(context: GradientContext) -> tuple[str | None, ...]:
    body = as_body(context.attribute("body"))
    states = len(body.inputs) - as_int(context.attribute("num_scan_inputs"))
    read = [context.type_of(value) for value in context.node.inputs]
    ranks = [type_.rank for type_ in read[states : len(body.inputs)]]
    along = scanned(*_lists(context, "scan_input"), ranks)
    made = [context.output_type(index).rank for index in range(states, len(body.outputs))]
    together = scanned(*_lists(context, "scan_output"), made)
    parts = (how.part(type_) for how, type_ in zip(along, read[states : len(body.inputs)], strict=True))
    carried = (context.output_type(state) for state in range(states))
    types = (*carried, *parts, *read[len(body.inputs) :])
    turns = read[states].shape[along[0].axis]
    names = ("scan_output_axes", "scan_output_directions")
    kept = {name: context.node.attributes[name] for name in names if context.node.attributes.get(name)}
    return repeated_gradient(
        context, Repeated(types, 0, states, 0, along, together, turns if isinstance(turns, int) else 0), kept
    )


def _lists(context: GradientContext, what: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return as_ints(context.attribute(f"{what}_axes") or ()), as_ints(context.attribute(f"{what}_directions") or ())


SCAN = OpSchema(
    op_type="Scan",
    inputs=(rest("initial_state_and_scan_inputs", ANY),),
    outputs=(rest("final_state_and_scan_outputs", ANY),),
    infer=_infer_scan,
    gradient=_scan_gradient,
    attributes={
        "body": Attribute(Subgraph, required=True),
        "num_scan_inputs": Attribute(int, required=True),
        "scan_input_axes": Attribute(tuple),
        "scan_input_directions": Attribute(tuple),
        "scan_output_axes": Attribute(tuple),
        "scan_output_directions": Attribute(tuple),
    },
)
"""Scan: a body for each part of its inputs along an axis.

The body takes its states and a part of each scanned input; it gives the states for the next turn and a part of each
scan output. Behind the first states and the scanned inputs, the node's inputs are what the body captures.
"""
