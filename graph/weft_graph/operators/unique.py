"""Unique: the distinct elements, or slices along `axis`, where each was first, where each is now, and how often."""

from __future__ import annotations

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.dimensions.dims import product
from weft_graph.formals import ANY, INT64, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import infer_axis
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flow import incoming
from weft_graph.types import DType, Shape, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    before: Shape
    after: Shape
    if context.attribute("axis") is None:
        whole, before, after = product(data.shape), (), ()
    else:
        axis = infer_axis(context, data.rank)
        whole, before, after = data.shape[axis], data.shape[:axis], data.shape[axis + 1 :]
    count = context.unknown(whole)
    numbers = TensorType(DType.INT64, (count,))
    return TensorType(data.dtype, (*before, count, *after)), numbers, TensorType(DType.INT64, (whole,)), numbers


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    """The first of equals has it all: the output is read from there."""
    gradient, data, first = incoming(context), context.input(0), context.output(1)
    axis = context.attribute("axis")
    if axis is not None:
        along = {"axis": as_int(axis), "wraps": 0}
        return context.emit("GatherGrad", (gradient, data, first), along, domain=WEFT_DOMAIN)
    flat = apply(context, "Reshape", data, context.constant(np.array([-1], dtype=np.int64)))
    (part,) = context.emit("GatherGrad", (gradient, flat, first), {"axis": 0, "wraps": 0}, domain=WEFT_DOMAIN)
    return context.emit("ReshapeLike", (part, data), domain=WEFT_DOMAIN)


SCHEMA = OpSchema(
    op_type="Unique",
    inputs=(required("X", ANY),),
    outputs=(
        required("Y", ANY),
        optional("indices", INT64),
        optional("inverse_indices", INT64),
        optional("counts", INT64),
    ),
    infer=_infer,
    gradient=_gradient,
    attributes={"axis": Attribute(int), "sorted": Attribute(int, default=1)},
)
