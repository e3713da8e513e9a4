"""SpaceToDepth: blocks of height and width laid out as channels, the reverse of DepthToSpace."""

from __future__ import annotations

from weft_graph.dimensions.dims import Dim, is_unknown, product, quotient, unknown_of
from weft_graph.formals import ANY, required
from weft_graph.operators.depth_to_space import BLOCK_ATTRIBUTES, infer_block, reverse_gradient
from weft_graph.schema import GradientContext, InferContext, OpSchema
from weft_graph.shapes.flops import moved
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, side = context.input(0), infer_block(context)
    batch, channels, high, wide = data.shape
    rows, columns = (_blocks(dim, side) for dim in (high, wide))
    if rows is None or columns is None:
        raise context.shape_error(f"{high} x {wide} does not fall into blocks of {side} x {side}; the input is {data}")
    return (TensorType(data.dtype, (batch, product((channels, side * side)), rows, columns)),)


def _blocks(dim: Dim, side: int) -> Dim | None:
    """How many blocks a dimension is, or None where it is none for any size."""
    return unknown_of("over", dim, side) if is_unknown(dim) else quotient((dim,), (side,))


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return (reverse_gradient(context, "DepthToSpace"),)


SCHEMA = OpSchema(
    op_type="SpaceToDepth",
    inputs=(required("input", ANY),),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes=BLOCK_ATTRIBUTES,
    flops=moved,
)
