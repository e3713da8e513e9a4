"""What is drawn: noise, samples, dropout."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Final

import numpy as np

from weft_graph.attributes import as_float, as_int, as_ints
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.arguments import optional, required
from weft_kernels.cuda import kernels as cuda
from weft_kernels.cuda.module import has_kernels
from weft_kernels.host import any_of
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.operators.softmax import softmax_along as softmax
from weft_kernels.random import Key, as_uniform, draws, step_key

# --- What Dropout and its gradient agree on: the ratio in force, and which elements are kept --------------------------


DEFAULT_RATIO: Final = 0.5


def ratio_in_force(ratio: Array | None, training_mode: Array | None) -> float:
    """The probability that an element is dropped: 0 outside training. Raises ValueError outside [0, 1)."""
    if training_mode is None or not bool(training_mode):
        return 0.0
    number = DEFAULT_RATIO if ratio is None else float(ratio)
    if not 0 <= number < 1:
        raise ValueError(f"ratio {number} is outside [0, 1)")
    return number


def kept(context: KernelContext, data: Array, ratio: float, seed: int | None) -> Array:
    """Which elements are kept, bool, of the data's shape.

    Element e of the step's sample s has draw `s * (elements of a sample) + e` of the stream of (seed, node, step), so
    the mask does not depend on how the step's batch is cut. A node's own `seed` takes the job's place.
    """
    samples = context.samples if context.samples is not None else data.shape[0] if data.ndim else 1
    start = context.first_sample * (data.size // samples) if samples else 0
    key = step_key(context.seed if seed is None else seed, context.node, context.step)
    # A draw is below ratio * 2^64 with probability `ratio`; the product is exact.
    threshold = int(ratio * 2.0**64)
    if has_kernels(context.xp):
        return cuda.kept(context.xp, key, start, data.shape, threshold, out=context.out(1, np.bool_))
    mask = draws(key, start, data.size) >= np.uint64(threshold)
    return context.xp.asarray(mask.reshape(data.shape))  # type: ignore[no-any-return]  # xp is Any


# --- Random numbers of a step's nodes, by the counter-based streams of `weft_kernels.random` --------------------------
# Element e of the step's sample s has the draw of place `s * (elements of a sample) + e`, so that numbers do not
# depend on how the step's batch is cut. All arithmetic is float64 on the host, and rounded once.


_UNIFORM_BITS = {"float32": 24, "float16": 11, "bfloat16": 8}
"""Digits of the narrower types: a draw of so many bits is below 1 in the type as well."""


def node_key(context: KernelContext, seed: float | None) -> Key:
    """The stream of the node in this step; its own seed takes the job's place."""
    if seed is None:
        return step_key(context.seed, context.node, context.step)
    whole = int(seed) if seed.is_integer() else int.from_bytes(struct.pack("<d", seed), "little")
    return step_key(whole, context.node, context.step)


def seed_of(attributes: Mapping[str, AttributeValue]) -> float | None:
    """The node's own seed, where it has one."""
    return as_float(attributes["seed"]) if "seed" in attributes else None


def samples_before(context: KernelContext, shape: tuple[int, ...], size: int) -> int:
    """Elements of the step's samples before this batch's first; `size` elements are drawn for the batch."""
    samples = context.samples if context.samples is not None else shape[0] if shape else 1
    return context.first_sample * (size // samples) if samples else 0


def uniform(key: Key, start: int, count: int, dtype: str = "float64") -> Array:
    """Draws in [0, 1) as float64 (count,), each a number that `dtype` holds."""
    raw = draws(key, start, count)
    bits = _UNIFORM_BITS.get(dtype)
    return as_uniform(raw) if bits is None else (raw >> np.uint64(64 - bits)) * 2.0**-bits


def normal(key: Key, start: int, count: int) -> Array:
    """Draws of a standard normal as float64 (count,), two uniform ones each: Box and Muller, 1958."""
    pairs = as_uniform(draws(key, 2 * start, 2 * count)).reshape(count, 2)
    radius = np.sqrt(-2.0 * np.log1p(-pairs[:, 0]))
    result: Array = radius * np.cos(2.0 * np.pi * pairs[:, 1])
    return result


@kernel("RandomNormal", waits=True)
def random_normal(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Normal draws of the step."""
    shape = as_ints(attributes["shape"])
    dtype = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy
    mean, scale = as_float(attributes["mean"]), as_float(attributes["scale"])
    made = (mean + scale * normal(node_key(context, seed_of(attributes)), 0, math.prod(shape))).astype(dtype)
    return (context.xp.asarray(made.reshape(shape)),)


@kernel("RandomNormalLike", waits=True)
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


@kernel("RandomUniform", waits=True)
def random_uniform(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Uniform draws of the step."""
    shape = as_ints(attributes["shape"])
    dtype = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy
    low, high = as_float(attributes["low"]), as_float(attributes["high"])
    unit = uniform(node_key(context, seed_of(attributes)), 0, math.prod(shape), dtype.name)
    made = (low + unit * (high - low)).astype(dtype)
    return (context.xp.asarray(made.reshape(shape)),)


@kernel("RandomUniformLike", waits=True)
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


@kernel("Bernoulli", waits=True)
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


@kernel("Multinomial", waits=True)
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
    result = context.xp.multiply(data, mask, out=context.out(0, data.dtype))
    result *= data.dtype.type(1 / (1 - ratio))
    return result, mask


@kernel("DropoutGrad", domain=WEFT_DOMAIN, host_inputs=(2, 3), in_float32=("float16", "bfloat16"))
def dropout_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The gradient of the elements that were kept, scaled as they were."""
    gradient, mask = required(inputs, 2)
    ratio = ratio_in_force(optional(inputs, 2), optional(inputs, 3))
    if ratio == 0:
        return (gradient,)
    result = context.xp.multiply(gradient, mask, out=context.out(0, gradient.dtype))
    result *= gradient.dtype.type(1 / (1 - ratio))
    return (result,)
