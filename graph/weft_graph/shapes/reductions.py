"""What reductions have in common: which axes they reduce, the types that follow, and steps of their gradients."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import INT64, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, Formal, GradientContext, InferContext
from weft_graph.shapes.axes import OpenAxes, infer_axes
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flow import incoming
from weft_graph.types import DType, Shape, TensorType

REDUCTION_ATTRIBUTES = {
    "axes": Attribute(tuple),
    "keepdims": Attribute(int, default=1),
    "noop_with_empty_axes": Attribute(int, default=0),
}


def reduced_axes(axes: tuple[int, ...] | None, rank: int, noop_with_empty_axes: int) -> tuple[int, ...]:
    """The axes to reduce: no axes mean all of them, or none where `noop_with_empty_axes` says so."""
    if axes:
        return axes
    return () if noop_with_empty_axes else tuple(range(rank))


def infer_reduction(context: InferContext) -> tuple[TensorType, ...]:
    """Input 0 with the reduced dimensions 1, or gone."""
    data = context.input(0)
    noop = as_int(context.attribute("noop_with_empty_axes"))
    keepdims = bool(as_int(context.attribute("keepdims")))
    given = infer_axes(context, data.rank)
    if isinstance(given, OpenAxes):
        return (TensorType(data.dtype, _open_dims(context, data, given.count, keepdims=keepdims)),)
    axes = reduced_axes(given, data.rank, noop)
    if keepdims:
        return (TensorType(data.dtype, tuple(1 if axis in axes else dim for axis, dim in enumerate(data.shape))),)
    return (TensorType(data.dtype, tuple(dim for axis, dim in enumerate(data.shape) if axis not in axes)),)


def _open_dims(context: InferContext, data: TensorType, count: int | None, *, keepdims: bool) -> Shape:
    """The dimensions that are left where a step decides which `count` axes are reduced."""
    if keepdims:
        return tuple(1 if dim == 1 else context.unknown(dim) for dim in data.shape)
    if count is None:
        raise context.shape_error(
            f"without keepdims it must be known before a step how many axes there are; the input is {data}"
        )
    return tuple(context.unknown() for _ in range(data.rank - count))


def reduction_gradient(context: GradientContext) -> tuple[str | None, ...]:
    """The gradient by `<operator>Grad(gradient, data, axes)`, with the same attributes."""
    attributes = given_attributes(context, REDUCTION_ATTRIBUTES)
    inputs = (incoming(context), *context.node.inputs)
    (data,) = context.emit(f"{context.node.op_type}Grad", inputs, attributes, domain=WEFT_DOMAIN)
    return (data, None)[: len(context.node.inputs)]


def spread(context: GradientContext, value: str) -> str:
    """The name of `value`, of the reduction's output type, repeated over what was reduced: the data's shape."""
    attributes = given_attributes(context, REDUCTION_ATTRIBUTES)
    inputs = (value, *context.node.inputs)
    return context.emit("ReduceSumGrad", inputs, attributes, domain=WEFT_DOMAIN)[0]


def summed(context: GradientContext, value: str) -> str:
    """The name of the sum of `value`, of the data's shape, over what the node reduces: the output's shape."""
    attributes = given_attributes(context, REDUCTION_ATTRIBUTES)
    return context.emit("ReduceSum", (value, *context.node.inputs[1:]), attributes)[0]


def by_data(context: GradientContext, gradient: str) -> tuple[str | None, ...]:
    """The data's gradient, and none for the axes."""
    return (gradient, None)[: len(context.node.inputs)]


def infer_reduction_gradient(context: InferContext) -> tuple[TensorType, ...]:
    """The gradient's element type in the data's shape."""
    return (TensorType(context.input(0).dtype, context.input(1).shape),)


def gradient_inputs(dtypes: frozenset[DType]) -> tuple[Formal, ...]:
    """The formal inputs of a reduction's gradient."""
    return required("gradient", dtypes), required("data", dtypes), optional("axes", INT64)
