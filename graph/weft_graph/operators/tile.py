"""Tile: each dimension as often as `repeats` says, one copy after the other."""

from __future__ import annotations

from weft_graph.dimensions.dims import product
from weft_graph.formals import ANY, INT64, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import GradientContext, InferContext, OpSchema
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, repeats = context.input(0), context.dims(1)
    if repeats is None or len(repeats) != data.rank or any(isinstance(n, int) and n < 0 for n in repeats):
        shown = context.input(1) if repeats is None else list(repeats)
        raise context.shape_error(f"repeats {shown} must be {data.rank} numbers, none below 0")
    return (TensorType(data.dtype, tuple(product(pair) for pair in zip(data.shape, repeats, strict=True))),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    (data,) = context.emit("TileGrad", (incoming(context), context.input(0)), domain=WEFT_DOMAIN)
    return data, None


SCHEMA = OpSchema(
    op_type="Tile",
    inputs=(required("input", ANY), required("repeats", INT64)),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    flops=moved,
)
