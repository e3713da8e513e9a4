"""OneHot: along a new dimension `axis` of `depth` elements the second of `values` at the index, the first elsewhere.

An index outside [-depth, depth) gives the first value everywhere.
"""

from __future__ import annotations

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.dimensions.dims import Dim, agree, product
from weft_graph.formals import ANY, NUMBERS, required, setting
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import infer_axis
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    indices, values = context.input(0), context.input(2)
    depth = _depth(context)
    if values.rank != 1 or not agree(values.shape[0], 2):
        raise context.shape_error(f"values {values} must be two numbers")
    axis = infer_axis(context, indices.rank + 1)
    return (TensorType(values.dtype, (*indices.shape[:axis], depth, *indices.shape[axis:])),)


def _depth(context: InferContext) -> Dim:
    """The number of classes: it may come as a number of any type."""
    given, known = context.input(1), context.constant(1)
    if given.rank > 1 or not agree(product(given.shape), 1):
        raise context.shape_error(f"depth {given} must be one number")
    dims = (int(known.reshape(-1)[0]),) if known is not None else context.dims(1)
    depth = context.unknown() if dims is None else dims[0]
    if isinstance(depth, int) and depth < 1:
        raise context.shape_error(f"depth {depth} must be at least 1")
    return depth


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    if not context.needs(2):
        return None, None, None
    gradient = incoming(context)
    switch = context.constant(np.array([0, 1], dtype=context.type_of(gradient).dtype.numpy))
    chosen = apply(
        context, "OneHot", context.input(0), context.input(1), switch, axis=as_int(context.attribute("axis"))
    )
    on = apply(context, "ReduceSum", apply(context, "Mul", gradient, chosen), keepdims=0)
    off = apply(context, "Sub", apply(context, "ReduceSum", gradient, keepdims=0), on)
    first = context.constant(np.zeros(1, dtype=np.int64))
    both = (apply(context, "Unsqueeze", value, first) for value in (off, on))
    return None, None, apply(context, "Concat", *both, axis=0)


SCHEMA = OpSchema(
    op_type="OneHot",
    inputs=(required("indices", NUMBERS), setting(required("depth", NUMBERS)), setting(required("values", ANY))),
    outputs=(required("output", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"axis": Attribute(int, default=-1)},
    flops=moved,
)
