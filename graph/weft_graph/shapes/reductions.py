"""Axes that are reduced, the largest along them, and its share of a gradient."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import INT64, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.schema import Attribute, Formal, GradientContext, Infer, InferContext
from weft_graph.shapes.broadcasting import OpenAxes, infer_axes, infer_axis, sum_to
from weft_graph.shapes.gradients import apply, given_attributes, incoming, scalar
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


# --- The gradient of a largest or smallest element: elements that are equal to it share it evenly ---------------------
# An even share is the mean of the slopes that a small change towards each of the equals would have. MaxPool alone
# gives all to the first of equals, as pooling has ever done.


def hits(context: GradientContext, value: str, extreme: str) -> str:
    """The name of 1 where `value` equals `extreme` and 0 elsewhere, of the element type of `value`."""
    dtype = context.type_of(value).dtype
    return apply(context, "Cast", apply(context, "Equal", value, extreme), to=NUMBER_OF_DTYPE[dtype])


def shared_by_equals(context: GradientContext) -> tuple[str | None, ...]:
    """The gradients of Max and Min: each input's share of it, summed to the input's shape."""
    gradient, inputs, extreme = incoming(context), context.node.inputs, context.output(0)
    if len(inputs) == 1:
        return (gradient,)
    count = apply(context, "Sum", *(hits(context, name, extreme) for name in inputs))
    share = apply(context, "Div", gradient, count)
    zero = scalar(context, 0, extreme)
    # Not a product of a share and a hit: an infinite gradient, as of a root at 0, times 0 would be NaN.
    return tuple(
        sum_to(context, apply(context, "Where", apply(context, "Equal", name, extreme), share, zero), name)
        if context.needs(index)
        else None
        for index, name in enumerate(inputs)
    )


def reduced_to_equals(context: GradientContext) -> tuple[str | None, ...]:
    """The gradients of ReduceMax and ReduceMin: the data's, and none for the axes."""
    hit = hits(context, context.input(0), spread(context, context.output(0)))
    share = apply(context, "Div", incoming(context), summed(context, hit))
    return by_data(context, apply(context, "Mul", hit, spread(context, share)))


# --- What ArgMax and ArgMin have in common: their attributes, and the type of the places that they find ---------------


PLACE_ATTRIBUTES = {
    "axis": Attribute(int, default=0),
    "keepdims": Attribute(int, default=1),
    "select_last_index": Attribute(int, default=0),
}


def infer_place(what: str) -> Infer:
    """Inference of the places of elements along `axis`; `what` is what an empty dimension has none of."""

    def infer(context: InferContext) -> tuple[TensorType, ...]:
        data = context.input(0)
        axis = infer_axis(context, data.rank)
        if data.shape[axis] == 0:
            raise context.shape_error(f"dimension {axis} of {data} is empty and has no {what}")
        kept = (1,) if as_int(context.attribute("keepdims")) else ()
        return (TensorType(DType.INT64, (*data.shape[:axis], *kept, *data.shape[axis + 1 :])),)

    return infer
