"""Control flow: If, Loop, Scan, and loops run backwards."""

from __future__ import annotations

from typing import Final

from weft_graph.attributes import as_body, as_int, as_ints
from weft_graph.dimensions.dims import Dim
from weft_graph.formals import ANY, BOOLEANS, INT64, optional, required, rest
from weft_graph.ir import WEFT_DOMAIN, Subgraph
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.bodies import infer_reads, is_one, joined, kept, passed_on, settle_carried
from weft_graph.shapes.loop_gradient import Repeated, repeated_gradient
from weft_graph.shapes.scanning import Scanned, infer_scanned, infer_turns, scanned
from weft_graph.types import DType, TensorType


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
