"""Squeeze: without the dimensions of 1 that `axes` names, or without all of them."""

from __future__ import annotations

from weft_graph.dimensions.dims import agree, is_unknown
from weft_graph.formals import ANY, INT64, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import OpenAxes, infer_axes
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.viewing import squeezed
from weft_graph.types import Shape, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    axes = infer_axes(context, data.rank)
    if isinstance(axes, OpenAxes):
        return (TensorType(data.dtype, _open_dims(context, data, axes)),)
    if axes is None:
        if not all(isinstance(dim, int) or is_unknown(dim) for dim in data.shape):
            raise context.shape_error(f"axes must be given: whether a dimension of {data} is 1 is not known")
        # What a step decides is taken not to be 1; a step in which it is fails, as the output has another rank then.
        axes = tuple(axis for axis, dim in enumerate(data.shape) if dim == 1)
    wrong = [axis for axis in axes if not agree(data.shape[axis], 1)]
    if wrong:
        raise context.shape_error(f"dimension {wrong[0]} of {data} is {data.shape[wrong[0]]}, not 1")
    return (TensorType(data.dtype, tuple(dim for axis, dim in enumerate(data.shape) if axis not in axes)),)


def _open_dims(context: InferContext, data: TensorType, axes: OpenAxes) -> Shape:
    if axes.count is None:
        raise context.shape_error(f"it must be known before a step how many axes there are; the input is {data}")
    return tuple(context.unknown() for _ in range(data.rank - axes.count))


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    (data,) = context.emit("ReshapeLike", (incoming(context), context.input(0)), domain=WEFT_DOMAIN)
    return (data, None)[: len(context.node.inputs)]


SCHEMA = OpSchema(
    op_type="Squeeze",
    inputs=(required("data", ANY), optional("axes", INT64)),
    outputs=(required("squeezed", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"axes": Attribute(tuple)},
    flops=moved,
    views=squeezed,
)
