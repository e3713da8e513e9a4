"""DiagonalGrad(gradient, operand): the operand's gradient, 0 but in the diagonal of dimensions that share a label.

`labels` has a letter for each dimension of the operand; the gradient's dimensions are these letters, each once, in the
order in which they first stand.
"""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return (context.input(1),)


SCHEMA = OpSchema(
    op_type="DiagonalGrad",
    inputs=(required("gradient", FLOATS), required("operand", FLOATS)),
    outputs=(required("operand_gradient", FLOATS),),
    infer=_infer,
    attributes={"labels": Attribute(str, required=True)},
    domain=WEFT_DOMAIN,
)
