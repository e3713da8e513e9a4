"""Pooling over windows and regions."""

from __future__ import annotations

from weft_graph.attributes import as_int, as_ints
from weft_graph.dimensions import agree, settled
from weft_graph.formals import FLOATS, INT64, optional, required, setting
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, MemoryOrder, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype, infer_like
from weft_graph.shapes.flops import boxes, boxes_gradient, moved, reduced, windowed, windowed_gradient
from weft_graph.shapes.gradients import apply, given_attributes, incoming, scalar
from weft_graph.shapes.reductions import hits
from weft_graph.shapes.windows import WINDOW_ATTRIBUTES, infer_counts, unpooled
from weft_graph.types import DType, TensorType

_DTYPES = FLOATS | {DType.INT8, DType.UINT8}


_MAX_POOL_POOL_ATTRIBUTES = {**WINDOW_ATTRIBUTES, "ceil_mode": Attribute(int, default=0)}


def _infer_max_pool(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    shape = (*data.shape[:2], *infer_counts(context, data))
    return TensorType(data.dtype, shape), TensorType(DType.INT64, shape)


def _max_pool_gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes: dict[str, AttributeValue] = {}
    for name in _MAX_POOL_POOL_ATTRIBUTES:
        value = context.attribute(name)
        if value is not None:
            attributes[name] = value
    inputs = (incoming(context), context.input(0), context.output(0))
    return context.emit("MaxPoolGrad", inputs, attributes, domain=WEFT_DOMAIN)


MAX_POOL = OpSchema(
    op_type="MaxPool",
    inputs=(required("X", _DTYPES),),
    outputs=(required("Y", _DTYPES), optional("Indices", INT64)),
    infer=_infer_max_pool,
    gradient=_max_pool_gradient,
    attributes={**_MAX_POOL_POOL_ATTRIBUTES, "storage_order": Attribute(int, default=0)},
    work=windowed,
    follows=True,
)
"""MaxPool: the largest element of each window, and where it lies in the flattened input."""


MAX_POOL_GRAD = OpSchema(
    op_type="MaxPoolGrad",
    inputs=(required("gradient", FLOATS), required("input", FLOATS), required("output", FLOATS)),
    outputs=(required("input_gradient", FLOATS),),
    infer=infer_like(1),
    attributes={**WINDOW_ATTRIBUTES, "ceil_mode": Attribute(int, default=0)},
    domain=WEFT_DOMAIN,
    order=MemoryOrder.INPUT,
    flops=windowed_gradient,
)
"""MaxPoolGrad(gradient, input, output): each window's gradient at its first largest element; MaxPool's attributes."""


MAX_UNPOOL_UNPOOL_ATTRIBUTES = {
    "kernel_shape": Attribute(tuple, required=True),
    "pads": Attribute(tuple),
    "strides": Attribute(tuple),
}


def _infer_max_unpool(context: InferContext) -> tuple[TensorType, ...]:
    data, indices = context.input(0), context.input(1)
    if data.rank < 3 or data.rank != indices.rank:
        raise context.shape_error(f"X and I must be (batch, channels, spatial ...) of one shape, got {data}, {indices}")
    if not all(agree(a, b) for a, b in zip(data.shape, indices.shape, strict=True)):
        raise context.shape_error(f"X {data} and I {indices} differ in shape")
    sizes = tuple(dim for dim in data.shape[2:] if isinstance(dim, int))
    shape = None
    if len(sizes) == data.rank - 2:
        try:
            shape = (*data.shape[:2], *unpooled(sizes, context.attribute))
        except ValueError as error:
            raise context.shape_error(f"{error}; the input is {data}") from None
    if context.optional_input(2) is not None:
        asked = context.dims(2)
        if asked is None or len(asked) != data.rank:
            raise context.shape_error(f"output_shape {context.input(2)} must have {data.rank} numbers")
        for given, natural in zip(asked, shape or asked, strict=True):
            if isinstance(given, int) and isinstance(natural, int) and given < natural:
                raise context.shape_error(f"output_shape {list(asked)} is smaller than the windows': {shape}")
        return (TensorType(data.dtype, tuple(asked)),)
    if shape is None:
        raise context.shape_error(f"spatial dimensions must be numbers, got {data}")
    return (TensorType(data.dtype, shape),)


def _max_unpool_gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(1))
    attributes = given_attributes(context, MAX_UNPOOL_UNPOOL_ATTRIBUTES)
    (data,) = context.emit("MaxUnpoolGrad", inputs, attributes, domain=WEFT_DOMAIN)
    return (data, *(None,) * (len(context.node.inputs) - 1))


MAX_UNPOOL = OpSchema(
    op_type="MaxUnpool",
    inputs=(required("X", FLOATS), required("I", INT64), optional("output_shape", INT64)),
    outputs=(required("output", FLOATS),),
    infer=_infer_max_unpool,
    gradient=_max_unpool_gradient,
    attributes=MAX_UNPOOL_UNPOOL_ATTRIBUTES,
    flops=moved,
)
"""MaxUnpool: each element where MaxPool found it, and zeros elsewhere."""


def _infer_max_unpool_grad(context: InferContext) -> tuple[TensorType, ...]:
    return (TensorType(context.input(0).dtype, context.input(1).shape),)


MAX_UNPOOL_GRAD = OpSchema(
    op_type="MaxUnpoolGrad",
    inputs=(required("gradient", FLOATS), required("I", INT64)),
    outputs=(required("X_gradient", FLOATS),),
    infer=_infer_max_unpool_grad,
    attributes=MAX_UNPOOL_UNPOOL_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    flops=moved,
)
"""MaxUnpoolGrad(gradient, I): the gradient of MaxUnpool's X, which lies where the indices say; its attributes."""


_AVERAGE_POOL_POOL_ATTRIBUTES = {
    **WINDOW_ATTRIBUTES,
    "ceil_mode": Attribute(int, default=0),
    "count_include_pad": Attribute(int, default=0),
}


def _infer_average_pool(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    return (TensorType(data.dtype, (*data.shape[:2], *infer_counts(context, data))),)


def _average_pool_gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes: dict[str, AttributeValue] = {}
    for name in _AVERAGE_POOL_POOL_ATTRIBUTES:
        value = context.attribute(name)
        if value is not None:
            attributes[name] = value
    return context.emit("AveragePoolGrad", (incoming(context), context.input(0)), attributes, domain=WEFT_DOMAIN)


AVERAGE_POOL = OpSchema(
    op_type="AveragePool",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer_average_pool,
    gradient=_average_pool_gradient,
    attributes=_AVERAGE_POOL_POOL_ATTRIBUTES,
    work=windowed,
)
"""AveragePool: the mean of each window, of the elements that are there or of all its places."""


AVERAGE_POOL_GRAD = OpSchema(
    op_type="AveragePoolGrad",
    inputs=(required("gradient", FLOATS), required("input", FLOATS)),
    outputs=(required("input_gradient", FLOATS),),
    infer=infer_like(1),
    attributes={
        **WINDOW_ATTRIBUTES,
        "ceil_mode": Attribute(int, default=0),
        "count_include_pad": Attribute(int, default=0),
    },
    domain=WEFT_DOMAIN,
    flops=windowed_gradient,
    shape_only=(1,),
)
"""AveragePoolGrad(gradient, input): each window's gradient, shared among its elements; AveragePool's attributes."""


LP_POOL_LP_ATTRIBUTES = {**WINDOW_ATTRIBUTES, "ceil_mode": Attribute(int, default=0), "p": Attribute(int, default=2)}


def _infer_lp_pool(context: InferContext) -> tuple[TensorType, ...]:
    data, p = context.input(0), as_int(context.attribute("p"))
    if p < 1:
        raise context.shape_error(f"p is {p}, and must be at least 1")
    return (TensorType(data.dtype, (*data.shape[:2], *infer_counts(context, data))),)


def _lp_pool_gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(0), context.output(0))
    return context.emit("LpPoolGrad", inputs, given_attributes(context, LP_POOL_LP_ATTRIBUTES), domain=WEFT_DOMAIN)


LP_POOL = OpSchema(
    op_type="LpPool",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer_lp_pool,
    gradient=_lp_pool_gradient,
    attributes=LP_POOL_LP_ATTRIBUTES,
    flops=windowed,
)
"""LpPool: the p-norm of each window; padding counts as 0. Where the norm is 0, so is the gradient."""


LP_POOL_GRAD = OpSchema(
    op_type="LpPoolGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS), required("Y", FLOATS)),
    outputs=(required("X_gradient", FLOATS),),
    infer=infer_like(1),
    attributes=LP_POOL_LP_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    flops=windowed_gradient,
)
"""LpPoolGrad(gradient, X, Y): the gradient of X; LpPool's attributes."""


def _infer_global_average_pool(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    if data.rank < 2:
        raise context.shape_error(f"the input must be (batch, channels, spatial ...), got {data}")
    return (TensorType(data.dtype, (*data.shape[:2], *(1,) * (data.rank - 2))),)


def _global_average_pool_gradient(context: GradientContext) -> tuple[str | None, ...]:
    data = context.input(0)
    axes = tuple(range(2, context.type_of(data).rank))
    attributes: dict[str, AttributeValue] = {"axes": axes, "keepdims": 1, "noop_with_empty_axes": 1}
    return context.emit("ReduceMeanGrad", (incoming(context), data), attributes, domain=WEFT_DOMAIN)


GLOBAL_AVERAGE_POOL = OpSchema(
    op_type="GlobalAveragePool",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer_global_average_pool,
    gradient=_global_average_pool_gradient,
)
"""GlobalAveragePool: the mean over all spatial dimensions, each of which becomes 1."""


def _infer_global_lp_pool(context: InferContext) -> tuple[TensorType, ...]:
    data, p = context.input(0), as_int(context.attribute("p"))
    if data.rank < 2 or p < 1:
        raise context.shape_error(f"the input must be (batch, channels, spatial ...) and p {p} at least 1, got {data}")
    return (TensorType(data.dtype, (*data.shape[:2], *(1,) * (data.rank - 2))),)


def _global_lp_pool_gradient(context: GradientContext) -> tuple[str | None, ...]:
    data, norm, p = context.input(0), context.output(0), as_int(context.attribute("p"))
    if p == 1:
        return (apply(context, "Mul", apply(context, "Sign", data), incoming(context)),)
    # Each element over the norm, which is at most 1: its powers neither overflow nor vanish all at once.
    is_zero = apply(context, "Equal", norm, scalar(context, 0, norm))
    ratio = apply(context, "Div", data, apply(context, "Where", is_zero, scalar(context, 1, norm), norm))
    if p > 2:
        size = apply(context, "Pow", apply(context, "Abs", ratio), scalar(context, p - 1, data))
        ratio = apply(context, "Mul", apply(context, "Sign", data), size)
    return (apply(context, "Mul", ratio, incoming(context)),)


GLOBAL_LP_POOL = OpSchema(
    op_type="GlobalLpPool",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer_global_lp_pool,
    gradient=_global_lp_pool_gradient,
    attributes={"p": Attribute(int, default=2)},
    flops=reduced,
)
"""GlobalLpPool: the p-norm over all spatial dimensions, each of which becomes 1."""


def _infer_global_max_pool(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    if data.rank < 2:
        raise context.shape_error(f"the input must be (batch, channels, spatial ...), got {data}")
    return (TensorType(data.dtype, (*data.shape[:2], *(1,) * (data.rank - 2))),)


def _global_max_pool_gradient(context: GradientContext) -> tuple[str | None, ...]:
    data = context.input(0)
    axes = tuple(range(2, context.type_of(data).rank))
    attributes: dict[str, AttributeValue] = {"axes": axes, "keepdims": 1, "noop_with_empty_axes": 1}
    hit = hits(context, data, context.output(0))
    share = apply(context, "Div", incoming(context), apply(context, "ReduceSum", hit, **attributes))
    return (apply(context, "Mul", hit, share),)


GLOBAL_MAX_POOL = OpSchema(
    op_type="GlobalMaxPool",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer_global_max_pool,
    gradient=_global_max_pool_gradient,
    flops=reduced,
    follows=True,
)
"""GlobalMaxPool: the largest element over all spatial dimensions, each of which becomes 1.

Equals share the gradient.
"""


MAX_ROI_POOL_ROI_ATTRIBUTES = {
    "pooled_shape": Attribute(tuple, required=True),
    "spatial_scale": Attribute(float, default=1.0),
}


def _infer_max_roi_pool(context: InferContext) -> tuple[TensorType, ...]:
    data, rois, pooled = context.input(0), context.input(1), as_ints(context.attribute("pooled_shape"))
    check_same_dtype(context, 0, 1)
    if data.rank != 4 or rois.rank != 2 or not agree(rois.shape[1], 5):
        raise context.shape_error(f"X must be (batch, channels, h, w) and rois (n, 5), got {data} and {rois}")
    if len(pooled) != 2 or min(pooled) < 1:
        raise context.shape_error(f"pooled_shape {pooled} must be two numbers, each at least 1")
    return (TensorType(data.dtype, (rois.shape[0], data.shape[1], *pooled)),)


def _max_roi_pool_gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), *context.node.inputs)
    (data,) = context.emit(
        "MaxRoiPoolGrad", inputs, given_attributes(context, MAX_ROI_POOL_ROI_ATTRIBUTES), domain=WEFT_DOMAIN
    )
    return data, None


MAX_ROI_POOL = OpSchema(
    op_type="MaxRoiPool",
    inputs=(required("X", FLOATS), setting(required("rois", FLOATS))),
    outputs=(required("Y", FLOATS),),
    infer=_infer_max_roi_pool,
    gradient=_max_roi_pool_gradient,
    attributes=MAX_ROI_POOL_ROI_ATTRIBUTES,
    flops=boxes,
)
"""MaxRoiPool: boxes of an input, each cut into bins of whole elements, the largest of each bin. Girshick 2015.

A box is (image, x1, y1, x2, y2), both ends included once scaled and rounded. An empty bin is 0. Boxes have no gradient.
"""


MAX_ROI_POOL_GRAD = OpSchema(
    op_type="MaxRoiPoolGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS), required("rois", FLOATS)),
    outputs=(required("X_gradient", FLOATS),),
    infer=infer_like(1),
    attributes=MAX_ROI_POOL_ROI_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    work=boxes_gradient,
)
"""MaxRoiPoolGrad(gradient, X, rois): the gradient of X, at the first of each bin's largest; MaxRoiPool's attributes."""


ROI_ALIGN_ALIGN_ATTRIBUTES = {
    "coordinate_transformation_mode": Attribute(str, default="half_pixel"),
    "mode": Attribute(str, default="avg"),
    "output_height": Attribute(int, default=1),
    "output_width": Attribute(int, default=1),
    "sampling_ratio": Attribute(int, default=0),
    "spatial_scale": Attribute(float, default=1.0),
}


_CHOICES = {"coordinate_transformation_mode": ("half_pixel", "output_half_pixel"), "mode": ("avg", "max")}


def _infer_roi_align(context: InferContext) -> tuple[TensorType, ...]:
    data, rois, images = context.input(0), context.input(1), context.input(2)
    for name, choices in _CHOICES.items():
        if context.attribute(name) not in choices:
            raise context.shape_error(f"{name} {context.attribute(name)!r} is none of {', '.join(choices)}")
    if data.rank != 4 or rois.rank != 2 or images.rank != 1 or not agree(rois.shape[1], 4):
        raise context.shape_error(
            f"X must be (batch, channels, h, w), rois (n, 4) and batch_indices (n), got {data}, {rois} and {images}"
        )
    if not agree(rois.shape[0], images.shape[0]):
        raise context.shape_error(f"rois {rois} and batch_indices {images} differ in number")
    high, wide = as_int(context.attribute("output_height")), as_int(context.attribute("output_width"))
    if min(high, wide) < 1 or as_int(context.attribute("sampling_ratio")) < 0:
        raise context.shape_error("output_height and output_width must be at least 1, sampling_ratio at least 0")
    return (TensorType(data.dtype, (settled(rois.shape[0], images.shape[0]), data.shape[1], high, wide)),)


def _roi_align_gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), *context.node.inputs)
    (data,) = context.emit(
        "RoiAlignGrad", inputs, given_attributes(context, ROI_ALIGN_ALIGN_ATTRIBUTES), domain=WEFT_DOMAIN
    )
    return data, None, None


ROI_ALIGN = OpSchema(
    op_type="RoiAlign",
    inputs=(required("X", FLOATS), setting(required("rois", FLOATS)), required("batch_indices", INT64)),
    outputs=(required("Y", FLOATS),),
    infer=_infer_roi_align,
    gradient=_roi_align_gradient,
    attributes=ROI_ALIGN_ALIGN_ATTRIBUTES,
    flops=boxes,
)
"""RoiAlign: boxes of an input, each cut into bins, each bin the mean or the largest of points read between elements.

X is (batch, channels, h, w), a box (x1, y1, x2, y2) in the image that X is `spatial_scale` times as large as.
He et al. 2017. Boxes have no gradient.
"""


ROI_ALIGN_GRAD = OpSchema(
    op_type="RoiAlignGrad",
    inputs=(
        required("gradient", FLOATS),
        required("X", FLOATS),
        required("rois", FLOATS),
        required("batch_indices", INT64),
    ),
    outputs=(required("X_gradient", FLOATS),),
    infer=infer_like(1),
    attributes=ROI_ALIGN_ALIGN_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    work=boxes_gradient,
)
"""RoiAlignGrad(gradient, X, rois, batch_indices): the gradient of X; RoiAlign's attributes."""
