"""Scan: a body for each part of its inputs along an axis.

The body takes its states and a part of each scanned input; it gives the states for the next turn and a part of each
scan output. Behind the first states and the scanned inputs, the node's inputs are what the body captures.
"""

from __future__ import annotations

from weft_graph.attributes import as_body, as_int, as_ints
from weft_graph.formals import ANY, rest
from weft_graph.ir import Subgraph
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.bodies import infer_reads, kept
from weft_graph.shapes.loop_gradient import Repeated, repeated_gradient
from weft_graph.shapes.scanning import infer_scanned, infer_turns, scanned
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
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


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
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


SCHEMA = OpSchema(
    op_type="Scan",
    inputs=(rest("initial_state_and_scan_inputs", ANY),),
    outputs=(rest("final_state_and_scan_outputs", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={
        "body": Attribute(Subgraph, required=True),
        "num_scan_inputs": Attribute(int, required=True),
        "scan_input_axes": Attribute(tuple),
        "scan_input_directions": Attribute(tuple),
        "scan_output_axes": Attribute(tuple),
        "scan_output_directions": Attribute(tuple),
    },
)
