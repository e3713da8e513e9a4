"""ConcatGrad(gradient, inputs ...): the part of the gradient that belongs to each input of Concat."""

from __future__ import annotations

from weft_graph.formals import ANY, FLOATS, required, variadic
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.limits import PROGRAM_LIMITS
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.viewing import part
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return tuple(context.input(index) for index in range(1, len(context.node.inputs)))


SCHEMA = OpSchema(
    op_type="ConcatGrad",
    inputs=(required("gradient", FLOATS), variadic("inputs", ANY)),
    outputs=(variadic("input_gradients", FLOATS),),
    infer=_infer,
    attributes={"axis": Attribute(int, required=True)},
    domain=WEFT_DOMAIN,
    shape_only=range(1, PROGRAM_LIMITS.node_values),
    views=part,
)
