"""Normalizations: over batches, layers, groups, channels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from weft_graph.attributes import as_float, as_int, as_ints
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.shapes.broadcasting import normalised
from weft_kernels.arguments import optional, required
from weft_kernels.cuda import normalization as cuda
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.products import sum_stack

# --- Rows of mean 0 and variance 1: what LayerNormalization, InstanceNormalization and GroupNormalization share -------


def standardized(xp: Any, rows: Array, epsilon: float) -> tuple[Array, Array, Array]:
    """(rows (n, elements) less their mean times `inverse`, mean (n, 1), inverse (n, 1) = 1 / sqrt(variance + epsilon)).

    All three are of the type that statistics are summed in.
    """
    dtype, count = statistics_dtype(xp, rows), max(rows.shape[1], 1)
    mean = xp.sum(rows, axis=1, keepdims=True, dtype=dtype) / count
    normal = rows.astype(dtype, copy=False) - mean
    inverse = 1 / xp.sqrt(xp.sum(xp.square(normal), axis=1, keepdims=True, dtype=dtype) / count + epsilon)
    normal *= inverse
    return normal, mean, inverse


def standardized_gradient(xp: Any, gradient: Array, normal: Array, inverse: Array) -> Array:
    """The gradient of the rows, by that of `normal`, a new array: Ba, Kiros and Hinton, "Layer normalization", 2016."""
    count = max(normal.shape[1], 1)
    result = gradient - xp.sum(gradient, axis=1, keepdims=True, dtype=normal.dtype) / count
    result -= normal * (xp.sum(gradient * normal, axis=1, keepdims=True, dtype=normal.dtype) / count)
    result *= inverse
    return result  # type: ignore[no-any-return]  # xp is Any


def over_root_mean_square(xp: Any, rows: Array, epsilon: float) -> tuple[Array, Array]:
    """(rows (n, elements) times `inverse`, inverse (n, 1) = 1 / sqrt(mean square + epsilon)), as wide as statistics."""
    dtype, count = statistics_dtype(xp, rows), max(rows.shape[1], 1)
    wide = rows.astype(dtype, copy=False)
    inverse = 1 / xp.sqrt(xp.sum(xp.square(wide), axis=1, keepdims=True, dtype=dtype) / count + epsilon)
    return wide * inverse, inverse


def centred_along(xp: Any, data: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """(data less its mean along the axes, its deviation there with these dimensions 1), as wide as statistics."""
    dtype = statistics_dtype(xp, data)
    count = max(math.prod(data.shape[axis] for axis in axes), 1)
    centred = data - xp.sum(data, axis=axes, keepdims=True, dtype=dtype) / count
    return centred, xp.sqrt(xp.sum(xp.square(centred), axis=axes, keepdims=True, dtype=dtype) / count)


def stash_of(xp: Any, data: Array, number: int) -> Any:
    """The type that statistics are given in: see `weft_graph.operators.normalization`."""
    return data.dtype if data.dtype == xp.float64 else DTYPE_OF_NUMBER[number].numpy


def group_rows(data: Array, groups: int) -> Array:
    """(batch, channels, ...) with a row for each sample's group of channels."""
    return data.reshape(data.shape[0] * groups, math.prod(data.shape[1:]) // groups)


def normalized_groups(xp: Any, data: Array, scale: Array, bias: Array, *, groups: int, epsilon: float) -> Array:
    """Each sample's groups of channels standardized, then scaled and shifted by numbers (channels,)."""
    normal, _, _ = standardized(xp, group_rows(data, groups), epsilon)
    beside = (-1, *(1,) * (data.ndim - 2))
    scale, bias = (array.reshape(beside).astype(normal.dtype, copy=False) for array in (scale, bias))
    result: Array = normal.reshape(data.shape) * scale + bias
    return result.astype(data.dtype, copy=False)


# --- Statistics of a batch by channel (axis 1), and their place beside the data ---------------------------------------


def other_axes(data: Array) -> tuple[int, ...]:
    """All axes but the channels'."""
    return (0, *range(2, data.ndim))


def beside(data: Array, by_channel: Array) -> Array:
    """One number a channel, (channels,), shaped so that it broadcasts against the data."""
    return by_channel.reshape(1, -1, *(1,) * (data.ndim - 2))


def samples_of(data: Array) -> int:
    """Elements of a channel."""
    return math.prod(data.shape[axis] for axis in other_axes(data))


def batch_statistics(xp: Any, data: Array, out: Array | None = None) -> tuple[Array, Array, Array]:
    """(data less its mean, mean (channels,), biased variance (channels,)); 0 and 0 where there is no element.

    The first is written to `out`, which may be the data's memory: it is not read after that.
    """
    axes, dtype = other_axes(data), statistics_dtype(xp, data)
    count = max(samples_of(data), 1)
    mean = xp.sum(data, axis=axes, dtype=dtype) / count
    centred = xp.subtract(data, beside(data, mean), out=out)
    variance = xp.sum(xp.square(centred), axis=axes, dtype=dtype) / count
    return centred, mean, variance


# --- Sums over neighbouring channels: what local response normalization divides by ------------------------------------


def channel_sums(xp: Any, data: Array, *, before: int, after: int) -> Array:
    """For each channel (axis 1) the sum of those from `before` ahead of it to `after` behind it; none is beyond."""
    result = data.copy()
    channels = data.shape[1]
    for shift in range(1, min(before, channels - 1) + 1):
        result[:, shift:] += data[:, :-shift]
    for shift in range(1, min(after, channels - 1) + 1):
        result[:, :-shift] += data[:, shift:]
    return result


def response_base(xp: Any, data: Array, attributes: Mapping[str, AttributeValue]) -> Array:
    """bias + alpha / size * the sum of squares of the `size` channels around each one, in the type of statistics."""
    size = as_int(attributes["size"])
    squares = xp.square(data.astype(statistics_dtype(xp, data), copy=False))
    around = channel_sums(xp, squares, before=(size - 1) // 2, after=size // 2)
    return as_float(attributes["bias"]) + as_float(attributes["alpha"]) / size * around


@kernel("BatchNormalization")
def batch_normalization(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Normalised by channel, in training by the batch's statistics, which also move the running ones."""
    xp = context.xp
    data, scale, bias, mean, variance = required(inputs)
    dtype = statistics_dtype(xp, data)
    epsilon = as_float(attributes["epsilon"])
    if cuda.fits(xp, data):
        return _batch_on_device(context, inputs, attributes)
    if not as_int(attributes["training_mode"]):
        factor = scale.astype(dtype) / xp.sqrt(variance.astype(dtype) + epsilon)
        offset = bias - mean * factor
        result = xp.multiply(data, beside(data, factor), out=context.out(0, dtype))
        result += beside(data, offset)
        return result.astype(data.dtype, copy=False), mean, variance
    centred, batch_mean, batch_variance = batch_statistics(xp, data, context.out(0, dtype))
    centred *= beside(data, scale.astype(dtype) / xp.sqrt(batch_variance + epsilon))
    centred += beside(data, bias)
    # A batch without elements has no statistics: the running ones stay.
    kept = as_float(attributes["momentum"]) if samples_of(data) else 1.0
    return (
        centred.astype(data.dtype, copy=False),
        (mean * kept + batch_mean * (1 - kept)).astype(mean.dtype, copy=False),
        (variance * kept + batch_variance * (1 - kept)).astype(variance.dtype, copy=False),
    )


_SCALED: Final = "a = Sub x mean; b = Mul a inverse; c = Mul b scale; y = Add c bias"
_SCALED_ALONE: Final = "a = Sub x mean; b = Mul a inverse; y = Mul b scale"
_BY_RUNNING: Final = (
    "v = Add variance epsilon; s = Sqrt v; f = Div scale s; a = Sub x mean; b = Mul a f; y = Add b bias"
)
_MOVED: Final = "a = Mul old kept; b = Mul new rest; y = Add a b"
_OF_ROWS: Final = (
    "a = Sub x mean; b = Mul a inverse; c = Mul b products; d = Mul g scale; e = Sub d sums; f = Sub e c; "
    "y = Mul f inverse"
)
"""A row's gradient from the means of its sums, with the scale beside its elements or beside all of it."""
_BY_ROOT: Final = "b = Mul x inverse; y = Mul b scale"
_OF_ROOTS: Final = "b = Mul x inverse; c = Mul b products; d = Mul g scale; f = Sub d c; y = Mul f inverse"
_OF_CHANNELS: Final = (
    "a = Sub x mean; b = Mul a inverse; c = Mul b products; e = Sub g sums; f = Sub e c; h = Mul scale inverse; "
    "y = Mul f h"
)


def _batch_on_device(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """BatchNormalization in a pass over the data for its statistics and one that writes it."""
    xp, epsilon = context.xp, as_float(attributes["epsilon"])
    data, scale, bias, mean, variance = required(inputs)
    name, out = data.dtype.name, context.out(0)
    scaled = [beside(data, each) for each in (scale, bias)]
    if not as_int(attributes["training_mode"]):
        running = beside(data, variance), scaled[0], data, beside(data, mean), scaled[1]
        body = cuda.body(_BY_RUNNING, name, epsilon=epsilon)
        return cuda.element_by_element(xp, body, running, out), mean, variance
    batch_mean, batch_variance, inverse = cuda.statistics(xp, cuda.channels(xp, data), epsilon)
    # From here on the memory of `data` may be the result's.
    given = (data, beside(data, batch_mean), beside(data, inverse), *scaled)
    result = cuda.element_by_element(xp, cuda.body(_SCALED, name), given, out)
    kept = as_float(attributes["momentum"])
    moved = [
        cuda.element_by_element(
            xp, cuda.body(_MOVED, old.dtype.name, kept=kept, rest=1 - kept), (old, new), context.out(at)
        )
        for at, old, new in ((1, mean, batch_mean), (2, variance, batch_variance))
    ]
    return result, *moved


@kernel("BatchNormalizationGrad", domain=WEFT_DOMAIN)
def batch_normalization_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of the input, the scale, the bias and, outside training, the statistics."""
    xp = context.xp
    gradient, data, scale, mean, variance = required(inputs)
    epsilon = as_float(attributes["epsilon"])
    if as_int(attributes["training_mode"]):
        return _training(context, gradient, data, scale, epsilon)
    axes, dtype = other_axes(data), statistics_dtype(xp, data)
    inverse = 1 / xp.sqrt(variance.astype(dtype) + epsilon)
    by_bias = xp.sum(gradient, axis=axes, dtype=dtype)
    centred = data - beside(data, mean)
    by_centred = xp.sum(gradient * centred, axis=axes, dtype=dtype)
    return (
        (gradient * beside(data, scale * inverse)).astype(data.dtype, copy=False),
        (by_centred * inverse).astype(scale.dtype, copy=False),
        by_bias.astype(scale.dtype, copy=False),
        (-by_bias * scale * inverse).astype(mean.dtype, copy=False),
        (by_centred * scale * inverse**3 * -0.5).astype(variance.dtype, copy=False),
    )


def _training(context: KernelContext, gradient: Array, data: Array, scale: Array, epsilon: float) -> tuple[Array, ...]:
    """Ioffe and Szegedy, "Batch normalization", 2015, section 3, with both sums taken once."""
    xp = context.xp
    axes, dtype = other_axes(data), statistics_dtype(xp, data)
    if cuda.fits(xp, data, gradient):
        rows = cuda.channels(xp, data), cuda.channels(xp, gradient)
        mean, _, inverse = cuda.statistics(xp, rows[0], epsilon)
        if rows[0][3] == rows[1][3]:
            total, product, *means = cuda.shares(xp, rows[1], rows[0], mean, inverse)
            by_channel = [beside(data, each) for each in (mean, inverse, means[1])]
            given = (data, *by_channel, gradient, beside(data, means[0]), beside(data, scale))
            result = cuda.element_by_element(xp, cuda.body(_OF_CHANNELS, data.dtype.name), given, context.out(0))
            return result, product.astype(scale.dtype, copy=False), total.astype(scale.dtype, copy=False)
    count = max(samples_of(data), 1)
    # From here on the memory of `data` may be the result's.
    normal, _, variance = batch_statistics(xp, data, context.out(0, dtype))
    inverse = 1 / xp.sqrt(variance + epsilon)
    normal *= beside(data, inverse)
    by_bias = xp.sum(gradient, axis=axes, dtype=dtype)
    by_scale = xp.sum(gradient * normal, axis=axes, dtype=dtype)
    normal *= beside(data, by_scale / -count)
    normal += gradient
    normal -= beside(data, by_bias / count)
    normal *= beside(data, scale * inverse)
    return (
        normal.astype(data.dtype, copy=False),
        by_scale.astype(scale.dtype, copy=False),
        by_bias.astype(scale.dtype, copy=False),
    )


@kernel("LayerNormalization")
def layer_normalization(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each sample's elements standardized, then scaled and shifted."""
    xp = context.xp
    data, scale = required(inputs, 2)
    axis = normalised(as_int(attributes["axis"]), data.ndim)
    shape = (*data.shape[:axis], *(1,) * (data.ndim - axis))
    given = stash_of(xp, data, as_int(attributes["stash_type"]))
    if cuda.fits(xp, data):
        outs = context.out(1), None, context.out(2)
        mean, _, inverse = cuda.statistics(xp, cuda.layers(xp, data, axis), as_float(attributes["epsilon"]), outs=outs)
        mean, inverse = mean.reshape(shape), inverse.reshape(shape)
        arrays = (data, mean, inverse, scale, *(each for each in inputs[2:3] if each is not None))
        body = cuda.body(_SCALED if len(arrays) > 4 else _SCALED_ALONE, data.dtype.name)
        result = cuda.element_by_element(xp, body, arrays, context.out(0))
        return result, mean.astype(given, copy=False), inverse.astype(given, copy=False)
    rows = data.reshape(math.prod(data.shape[:axis]), math.prod(data.shape[axis:]))
    normal, mean, inverse = standardized(xp, rows, as_float(attributes["epsilon"]))
    result = normal.reshape(data.shape)
    result = xp.multiply(result, scale.astype(normal.dtype, copy=False), out=context.out(0, normal.dtype))
    bias = optional(inputs, 2)
    if bias is not None:
        result += bias.astype(normal.dtype, copy=False)
    statistics = (array.reshape(shape).astype(given, copy=False) for array in (mean, inverse))
    return result.astype(data.dtype, copy=False), *statistics


@kernel("LayerNormalizationGrad", domain=WEFT_DOMAIN)
def layer_normalization_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of the data and of the scale, by the statistics of the way forward."""
    xp = context.xp
    gradient, data, scale, mean, inverse = required(inputs)
    axis = normalised(as_int(attributes["axis"]), data.ndim)
    shape = (math.prod(data.shape[:axis]), math.prod(data.shape[axis:]))
    wide = statistics_dtype(xp, data)
    if cuda.fits(xp, data, gradient) and mean.dtype == wide and scale.size == shape[1]:
        lying = cuda.layers(xp, gradient, axis), cuda.layers(xp, data, axis)
        _, _, *means = cuda.shares(xp, *lying, mean, inverse, scale=scale.reshape(-1))
        by_row = [each.reshape(mean.shape) for each in means]
        by_scale = cuda.column_sums(xp, *lying, mean, inverse).reshape(scale.shape)
        arrays = (data, mean, inverse, by_row[1], gradient, scale, by_row[0])
        result = cuda.element_by_element(xp, cuda.body(_OF_ROWS, data.dtype.name), arrays, context.out(0))
        return result, by_scale.astype(scale.dtype, copy=False)
    if mean.dtype == wide:
        normal = (data - mean) * inverse
    else:
        rows, _, inverse = standardized(xp, data.reshape(shape), as_float(attributes["epsilon"]))
        normal = rows.reshape(data.shape)
    gradient = gradient.astype(wide, copy=False)
    by_scale = sum_stack(xp, gradient * normal, scale.shape)
    by_normal = gradient * scale.astype(wide, copy=False)
    result = standardized_gradient(xp, by_normal.reshape(shape), normal.reshape(shape), inverse.reshape(shape[0], 1))
    return result.reshape(data.shape).astype(data.dtype, copy=False), by_scale.astype(scale.dtype, copy=False)


@kernel("RMSNormalization")
def rms_normalization(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each sample's elements over the root of their mean square, then scaled."""
    data, scale = required(inputs)
    axis, xp = normalised(as_int(attributes["axis"]), data.ndim), context.xp
    if cuda.fits(xp, data):
        lying, epsilon = cuda.layers(xp, data, axis), as_float(attributes["epsilon"])
        inverse = cuda.statistics(xp, lying, epsilon, centred=False)[2]
        arrays = (data, inverse.reshape(*data.shape[:axis], *(1,) * (data.ndim - axis)), scale)
        return (cuda.element_by_element(xp, cuda.body(_BY_ROOT, scale.dtype.name), arrays, context.out(0)),)
    rows = data.reshape(math.prod(data.shape[:axis]), math.prod(data.shape[axis:]))
    normal, _ = over_root_mean_square(xp, rows, as_float(attributes["epsilon"]))
    result = normal.reshape(data.shape) * scale.astype(normal.dtype, copy=False)
    return (result.astype(scale.dtype, copy=False),)


@kernel("RMSNormalizationGrad", domain=WEFT_DOMAIN)
def rms_normalization_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of the data and of the scale; the root mean square is computed again."""
    xp = context.xp
    gradient, data, scale = required(inputs)
    axis = normalised(as_int(attributes["axis"]), data.ndim)
    shape = (math.prod(data.shape[:axis]), math.prod(data.shape[axis:]))
    if cuda.fits(xp, data, gradient) and scale.size == shape[1]:
        lying = cuda.layers(xp, gradient, axis), cuda.layers(xp, data, axis)
        mean, _, inverse = cuda.statistics(xp, lying[1], as_float(attributes["epsilon"]), centred=False)
        *_, product = cuda.shares(xp, *lying, mean, inverse, scale=scale.reshape(-1))
        by_scale = cuda.column_sums(xp, *lying, mean, inverse).reshape(scale.shape)
        inverse, product = (each.reshape(*data.shape[:axis], *(1,) * (data.ndim - axis)) for each in (inverse, product))
        arrays = (data, inverse, product, gradient, scale)
        result = cuda.element_by_element(xp, cuda.body(_OF_ROOTS, data.dtype.name), arrays, context.out(0))
        return result, by_scale.astype(scale.dtype, copy=False)
    normal, inverse = over_root_mean_square(xp, data.reshape(shape), as_float(attributes["epsilon"]))
    gradient, wide_scale = (array.astype(normal.dtype, copy=False) for array in (gradient, scale))
    by_scale = sum_stack(xp, gradient * normal.reshape(data.shape), scale.shape)
    result = (gradient * wide_scale).reshape(shape)
    result -= normal * (xp.sum(result * normal, axis=1, keepdims=True, dtype=normal.dtype) / max(shape[1], 1))
    result *= inverse
    return result.reshape(data.shape).astype(data.dtype, copy=False), by_scale.astype(scale.dtype, copy=False)


@kernel("GroupNormalization")
def group_normalization(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each sample's groups of channels standardized, then scaled and shifted."""
    data, scale, bias = required(inputs)
    groups, epsilon = as_int(attributes["num_groups"]), as_float(attributes["epsilon"])
    return (normalized_groups(context.xp, data, scale, bias, groups=groups, epsilon=epsilon),)


@kernel("GroupNormalizationGrad", domain=WEFT_DOMAIN)
def group_normalization_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of the data, the scale and the bias; the statistics are computed again."""
    xp = context.xp
    gradient, data, scale = required(inputs)
    groups = as_int(attributes["num_groups"]) or data.shape[1]
    normal, _, inverse = standardized(xp, group_rows(data, groups), as_float(attributes["epsilon"]))
    gradient = gradient.astype(normal.dtype, copy=False)
    by_normal = gradient * beside(data, scale).astype(normal.dtype, copy=False)
    result = standardized_gradient(xp, group_rows(by_normal, groups), normal, inverse)
    axes = other_axes(data)
    by_scale = xp.sum(gradient * normal.reshape(data.shape), axis=axes, dtype=normal.dtype)
    by_bias = xp.sum(gradient, axis=axes, dtype=normal.dtype)
    return (
        result.reshape(data.shape).astype(data.dtype, copy=False),
        by_scale.astype(scale.dtype, copy=False),
        by_bias.astype(scale.dtype, copy=False),
    )


@kernel("InstanceNormalization")
def instance_normalization(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each sample's channels standardized, then scaled and shifted."""
    data, scale, bias = required(inputs)
    epsilon = as_float(attributes["epsilon"])
    return (normalized_groups(context.xp, data, scale, bias, groups=data.shape[1], epsilon=epsilon),)


@kernel("LpNormalization", in_float32=("float16", "bfloat16"))
def lp_normalization(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The data over its norm along an axis; 0 where that is 0."""
    xp = context.xp
    (data,) = required(inputs)
    wide = data.astype(statistics_dtype(xp, data), copy=False)
    powers = xp.square(wide) if as_int(attributes["p"]) == 2 else xp.abs(wide)
    norm = xp.sum(powers, axis=as_int(attributes["axis"]), keepdims=True, dtype=wide.dtype)
    norm = xp.sqrt(norm) if as_int(attributes["p"]) == 2 else norm
    return ((wide / xp.where(norm == 0, norm.dtype.type(1), norm)).astype(data.dtype, copy=False),)


MEAN_VARIANCE_NORMALIZATION_BESIDE: Final = 1e-9
"""Added to the deviation, so that what does not vary is 0: ONNX's number."""


@kernel("MeanVarianceNormalization")
def mean_variance_normalization(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Elements along some axes less their mean, over their deviation."""
    (data,) = required(inputs)
    centred, deviation = centred_along(context.xp, data, as_ints(attributes["axes"]))
    return ((centred / (deviation + MEAN_VARIANCE_NORMALIZATION_BESIDE)).astype(data.dtype, copy=False),)


@kernel("MeanVarianceNormalizationGrad", domain=WEFT_DOMAIN)
def mean_variance_normalization_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradient of the data; mean and deviation are computed again."""
    xp = context.xp
    gradient, data = required(inputs)
    axes = as_ints(attributes["axes"])
    centred, deviation = centred_along(xp, data, axes)
    gradient = gradient.astype(centred.dtype, copy=False)
    below, count = deviation + MEAN_VARIANCE_NORMALIZATION_BESIDE, max(data.size // max(deviation.size, 1), 1)
    result = gradient - xp.sum(gradient, axis=axes, keepdims=True, dtype=gradient.dtype) / count
    # Through the deviation, which has no slope where it is 0: what is centred is 0 there too.
    together = xp.sum(gradient * centred, axis=axes, keepdims=True, dtype=gradient.dtype) / count
    result -= centred * (together / xp.where(deviation == 0, 1, deviation * below))
    result /= below
    return (xp.where(deviation == 0, result.dtype.type(0), result).astype(data.dtype, copy=False),)


@kernel("LRN", in_float32=("float16", "bfloat16"))
def lrn(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each element over a power of the mean square of the channels around it."""
    xp = context.xp
    (data,) = required(inputs)
    base = response_base(xp, data, attributes)
    return ((data * base ** -as_float(attributes["beta"])).astype(data.dtype, copy=False),)


@kernel("LRNGrad", domain=WEFT_DOMAIN, in_float32=("float16", "bfloat16"))
def lrn_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """What each element has of its own response, less its part in the responses around it."""
    xp = context.xp
    gradient, data = required(inputs)
    alpha, beta, size = as_float(attributes["alpha"]), as_float(attributes["beta"]), as_int(attributes["size"])
    base = response_base(xp, data, attributes)
    own = gradient * base**-beta
    # The windows that hold a channel lie around it as its own window does, mirrored.
    around = channel_sums(xp, own * data / base, before=size // 2, after=(size - 1) // 2)
    return ((own - 2 * alpha * beta / size * data * around).astype(data.dtype, copy=False),)
