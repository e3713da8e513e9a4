"""LoopGrad(gradients of states, stacked values, captured values): the derived body of a Loop or Scan, last turn first.

The body takes the states' gradients, `carried` many, and this turn's part of each stacked value. It gives the states'
gradients for the turn before; a part of each scanned input's gradient; and what the turn adds to the gradients of
captured values, `summed` being their places among these.
"""

from __future__ import annotations

from weft_graph.attributes import as_body, as_int, as_ints
from weft_graph.formals import ANY, rest
from weft_graph.ir import WEFT_DOMAIN, Subgraph
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.bodies import infer_reads
from weft_graph.shapes.scanning import infer_scanned, infer_turns
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
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


SCHEMA = OpSchema(
    op_type="LoopGrad",
    inputs=(rest("gradients_stacked_and_captured", ANY),),
    outputs=(rest("gradients", ANY),),
    infer=_infer,
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
