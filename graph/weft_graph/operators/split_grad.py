"""SplitGrad(input, split, gradients ...): the pieces' gradients one after the other, 0 for one that is left out."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INT64, optional, required, variadic
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(0),)


SCHEMA = OpSchema(
    op_type="SplitGrad",
    inputs=(required("input", FLOATS), optional("split", INT64), variadic("gradients", FLOATS)),
    outputs=(required("input_gradient", FLOATS),),
    infer=_infer,
    attributes={"axis": Attribute(int, default=0), "split": Attribute(tuple)},
    domain=WEFT_DOMAIN,
    shape_only=(0,),
)
