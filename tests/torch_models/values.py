"""Values that both sides make for themselves, so that no fixture has to carry them: parameters, inputs, projections."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

PROJECTIONS = 8
RUNNING = {"running_mean": 0.0, "running_var": 1.0, "num_batches_tracked": 0.0}


def _draws(*names: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=zlib.crc32("/".join(names).encode())))


def parameter(name: str, shape: tuple[int, ...]) -> Array:
    """A first value of the named parameter, exact in float32: by fan-in where it has several dimensions, near 1 or 0
    where it has one (scales end with `weight`, all others are biases). Running statistics are 0 and 1."""
    if name.rpartition(".")[2] in RUNNING:
        return np.full(shape, RUNNING[name.rpartition(".")[2]])
    drawn = _draws("parameter", name).standard_normal(shape)
    if len(shape) > 1:
        drawn = drawn / np.sqrt(np.prod(shape[1:]))
    else:
        drawn = 0.1 * drawn + (1.0 if name.endswith("weight") else 0.0)
    return drawn.astype(np.float32).astype(np.float64)


def given(network: str, name: str, kind: str, shape: tuple[int, ...], bound: int) -> Array:
    """An input of the named network: `float` in [-1, 1], exact in float32, `int` below the bound, `bit` 0.0 or 1.0,
    `mask` true from the bound on in every second row."""
    draws = _draws("input", network, name)
    if kind == "float":
        return draws.uniform(-1, 1, shape).astype(np.float32).astype(np.float64)
    if kind == "bit":
        return draws.integers(0, 2, shape).astype(np.float64)
    if kind == "mask":
        return (np.arange(shape[1]) >= bound)[None, :] & (np.arange(shape[0]) % 2 == 1)[:, None]
    return draws.integers(0, bound, shape)


def projected(name: str, gradient: Array) -> list[float]:
    """The gradient's inner products with directions drawn for it: as far apart as the gradients are, in the mean."""
    draws = _draws("projection", name)
    flat = np.asarray(gradient, np.float64).reshape(-1)
    return [float(flat @ draws.standard_normal(flat.size)) for _ in range(PROJECTIONS)]
