"""Random numbers of a step's nodes, by the counter-based streams of `weft_kernels.random`.

Element e of the step's sample s has the draw of place `s * (elements of a sample) + e`, so that numbers do not depend
on how the step's batch is cut. All arithmetic is float64 on the host, and rounded once.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

from weft_graph.attributes import as_float
from weft_graph.ir import AttributeValue
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.random import Key, as_uniform, draws, step_key

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
