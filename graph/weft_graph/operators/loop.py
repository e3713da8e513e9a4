"""Loop: a body again and again, at most M times, while a condition holds.

The body takes the turn's number, the condition and what is carried; it gives the condition for the next turn, what is
carried on, and a part of each scan output. Behind M, the condition and the first values of what is carried, the node's
inputs are what the body captures.
"""

from __future__ import annotations

from typing import Final

from weft_graph.attributes import as_body
from weft_graph.dimensions.dims import Dim
from weft_graph.formals import ANY, BOOLEANS, INT64, optional, rest
from weft_graph.ir import Subgraph
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.bodies import infer_reads, is_one, passed_on, settle_carried
from weft_graph.shapes.loop_gradient import Repeated, repeated_gradient
from weft_graph.shapes.scanning import Scanned
from weft_graph.types import DType, TensorType

MOST_PART_BYTES: Final = 1 << 32
"""Of what all turns give: no estimate knows how often a loop runs whose end only its values decide."""
MOST_PARTS: Final = 1 << 20
"""Turns whose parts a scan output, or what a gradient needs of each turn, may be made of. A loop without scan outputs
may have any number: whoever runs it may end it between two turns."""

_COUNT, _CONDITION = TensorType(DType.INT64, ()), TensorType(DType.BOOL, ())


def _infer(context: InferContext) -> tuple[TensorType, ...]:
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


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
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


SCHEMA = OpSchema(
    op_type="Loop",
    inputs=(optional("M", INT64), optional("cond", BOOLEANS), rest("v_initial", ANY)),
    outputs=(rest("v_final_and_scan_outputs", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"body": Attribute(Subgraph, required=True)},
)
