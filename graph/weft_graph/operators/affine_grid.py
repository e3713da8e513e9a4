"""AffineGrid: for each place of an image where an affine matrix sends it, in coordinates from -1 to 1.

`theta` (batch, 2, 3) or (batch, 3, 4) gives (batch, h, w, 2) or (batch, d, h, w, 3). Jaderberg et al. 2015.
"""

from __future__ import annotations

from weft_graph.dimensions.dims import agree, agree_all, settled
from weft_graph.formals import FLOATS, INT64, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType

GRID_ATTRIBUTES = {"align_corners": Attribute(int, default=0)}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    theta, size = context.input(0), context.dims(1)
    rank = 0 if size is None else len(size) - 2
    if size is None or rank not in {2, 3} or theta.rank != 3 or not agree_all(theta.shape[1:], (rank, rank + 1)):
        raise context.shape_error(
            f"theta must be (batch, 2, 3) or (batch, 3, 4) with a size of 4 or 5 numbers, got {theta}, {size}"
        )
    if not agree(theta.shape[0], size[0]):
        raise context.shape_error(f"theta {theta} has {theta.shape[0]} matrices for a batch of {size[0]}")
    if any(isinstance(dim, int) and dim < 0 for dim in size):
        raise context.shape_error(f"size {list(size)} has a dimension below 0")
    return (TensorType(theta.dtype, (settled(theta.shape[0], size[0]), *size[2:], rank)),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(0), context.input(1))
    attributes = given_attributes(context, GRID_ATTRIBUTES)
    (theta,) = context.emit("AffineGridGrad", inputs, attributes, domain=WEFT_DOMAIN)
    return theta, None


SCHEMA = OpSchema(
    op_type="AffineGrid",
    inputs=(required("theta", FLOATS), required("size", INT64)),
    outputs=(required("grid", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes=GRID_ATTRIBUTES,
    flops=moved,
)
