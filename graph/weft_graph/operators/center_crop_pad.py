"""CenterCropPad: the middle of dimensions that are too long, and zeros around those that are too short."""

from __future__ import annotations

from weft_graph.attributes import as_ints
from weft_graph.formals import ANY, INDICES, required
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.composing import apply
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.resizing import check_length, resized_axes
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, target, given = context.input(0), context.dims(1), context.attribute("axes")
    if target is None:
        raise context.shape_error(f"shape must be a list of as many numbers as axes, got {context.input(1)}")
    try:
        axes = resized_axes(data.rank, None if given is None else as_ints(given))
        check_length("shape", target, axes)
    except ValueError as error:
        raise context.shape_error(f"{error}; the input is {data}") from None
    shape = list(data.shape)
    for axis, dim in zip(axes, target, strict=True):
        if isinstance(dim, int) and dim < 0:
            raise context.shape_error(f"shape {list(target)} has a dimension below 0")
        shape[axis] = dim
    return (TensorType(data.dtype, tuple(shape)),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    # What was cut off is put back as zeros around the middle, and what was put around it is cut off.
    shape = apply(context, "Shape", context.input(0))
    return apply(context, "CenterCropPad", incoming(context), shape), None


SCHEMA = OpSchema(
    op_type="CenterCropPad",
    inputs=(required("input_data", ANY), required("shape", INDICES)),
    outputs=(required("output_data", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"axes": Attribute(tuple)},
    flops=moved,
)
