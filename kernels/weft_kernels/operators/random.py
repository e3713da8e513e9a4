"""What is drawn: noise, samples, dropout."""

from __future__ import annotations

import math

from weft_graph.attributes import as_float, as_int, as_ints
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.arguments import optional, required
from weft_kernels.dropout import kept, ratio_in_force
from weft_kernels.host import any_of
from weft_kernels.kernel import Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.node_draws import node_key, normal, samples_before, seed_of, uniform
from weft_kernels.softmax import softmax


@kernel("RandomNormal")
def random_normal(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Normal draws of the step."""
    shape = as_ints(attributes["shape"])
    dtype = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy
    mean, scale = as_float(attributes["mean"]), as_float(attributes["scale"])
    made = (mean + scale * normal(node_key(context, seed_of(attributes)), 0, math.prod(shape))).astype(dtype)
    return (context.xp.asarray(made.reshape(shape)),)


@kernel("RandomNormalLike")
def random_normal_like(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Normal draws of the step."""
    (data,) = required(inputs)
    dtype = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy if "dtype" in attributes else data.dtype
    mean, scale = as_float(attributes["mean"]), as_float(attributes["scale"])
    made = (
        mean
        + scale
        * normal(node_key(context, seed_of(attributes)), samples_before(context, data.shape, data.size), data.size)
    ).astype(dtype)
    return (context.xp.asarray(made.reshape(data.shape)),)


@kernel("RandomUniform")
def random_uniform(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Uniform draws of the step."""
    shape = as_ints(attributes["shape"])
    dtype = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy
    low, high = as_float(attributes["low"]), as_float(attributes["high"])
    unit = uniform(node_key(context, seed_of(attributes)), 0, math.prod(shape), dtype.name)
    made = (low + unit * (high - low)).astype(dtype)
    return (context.xp.asarray(made.reshape(shape)),)


@kernel("RandomUniformLike")
def random_uniform_like(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Uniform draws of the step."""
    (data,) = required(inputs)
    dtype = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy if "dtype" in attributes else data.dtype
    low, high = as_float(attributes["low"]), as_float(attributes["high"])
    unit = uniform(
        node_key(context, seed_of(attributes)), samples_before(context, data.shape, data.size), data.size, dtype.name
    )
    made = (low + unit * (high - low)).astype(dtype)
    return (context.xp.asarray(made.reshape(data.shape)),)


@kernel("Bernoulli")
def bernoulli(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Whether a draw of the step is below the probability."""
    xp = context.xp
    (data,) = required(inputs)
    wide = data.astype(xp.float64)
    if any_of(xp, ~((wide >= 0) & (wide <= 1))):
        raise ValueError("a probability is outside [0, 1]")
    dtype = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy if "dtype" in attributes else data.dtype
    start = samples_before(context, data.shape, data.size)
    unit = uniform(node_key(context, seed_of(attributes)), start, data.size).reshape(data.shape)
    return ((xp.asarray(unit) < wide).astype(dtype),)


@kernel("Multinomial")
def multinomial(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The first class whose share, added to those before it, is above a draw of the step."""
    xp = context.xp
    (data,) = required(inputs)
    dtype, count = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy, as_int(attributes["sample_size"])
    rows, classes = data.shape
    start = samples_before(context, data.shape, rows * count)
    unit = xp.asarray(uniform(node_key(context, seed_of(attributes)), start, rows * count).reshape(rows, count))
    upto = xp.cumsum(softmax(xp, data.astype(xp.float64), axis=1), axis=1)
    # Row r's shares lie between r and r + 1, so that all rows are one sorted list.
    offset = xp.arange(rows, dtype=xp.float64)[:, None]
    shares = upto / upto[:, -1:] + offset
    place = xp.searchsorted(shares.reshape(-1), (unit + offset).reshape(-1), side="right").reshape(rows, count)
    first = xp.arange(rows)[:, None] * classes
    return (xp.minimum(place - first, classes - 1).astype(dtype),)


@kernel("Dropout", host_inputs=(1, 2), in_float32=("float16", "bfloat16"))
def dropout(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Elements dropped by counter-based draws, the rest scaled; also the mask of those kept."""
    xp = context.xp
    (data,) = required(inputs, 1)
    ratio = ratio_in_force(optional(inputs, 1), optional(inputs, 2))
    if ratio == 0:
        return data, xp.ones(data.shape, dtype=bool)
    mask = kept(context, data, ratio, as_int(attributes["seed"]) if "seed" in attributes else None)
    return data * mask * data.dtype.type(1 / (1 - ratio)), mask


@kernel("DropoutGrad", domain=WEFT_DOMAIN, host_inputs=(2, 3), in_float32=("float16", "bfloat16"))
def dropout_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The gradient of the elements that were kept, scaled as they were."""
    gradient, mask = required(inputs, 2)
    ratio = ratio_in_force(optional(inputs, 2), optional(inputs, 3))
    if ratio == 0:
        return (gradient,)
    return (gradient * mask * gradient.dtype.type(1 / (1 - ratio)),)
