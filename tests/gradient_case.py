"""A case of an operator's gradient: inputs, attributes, and the same function written in JAX.

Values are drawn once and can be held by float16, so that one float64 reference serves every element type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft_graph.ir import AttributeValue

Array = np.ndarray[Any, np.dtype[Any]]
Reference = Callable[..., Any]
"""The forward function over JAX arrays, of the inputs that are differentiated; a tuple for several outputs."""


@dataclass(frozen=True)
class GradientCase:
    """One node. `inputs` are float64 where gradients flow and fixed otherwise; `reference` takes the former.

    `fixed` are places of float inputs that nothing is derived for; `smooth` is False where a central difference means
    nothing (ties, jumps), so that only JAX is compared with. `flat` marks an operator of steps: nothing flows through
    it, so its inputs are summed up to the loss beside it.
    """

    name: str
    op_type: str
    inputs: tuple[Array | None, ...]
    reference: Reference
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    outputs: int = 1
    fixed: frozenset[int] = frozenset()
    smooth: bool = True
    domain: str = ""
    flat: bool = False

    @property
    def known(self) -> tuple[int, ...]:
        """Places of inputs that are constants of the graph: whole numbers, and lists of float32 (scales)."""
        return tuple(
            place
            for place, array in enumerate(self.inputs)
            if array is not None and array.dtype in (np.int64, np.float32)
        )

    @property
    def differentiated(self) -> tuple[int, ...]:
        return tuple(
            place
            for place, array in enumerate(self.inputs)
            if array is not None and array.dtype == np.float64 and place not in self.fixed
        )


def floats(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Array:
    """Random numbers that float16 holds, float64, none nearer to 0 than 0.05: Relu and Div stay away from it."""
    drawn = np.random.default_rng([seed, *shape]).uniform(low, high, shape)
    apart = np.where(np.abs(drawn) < 0.05, drawn + math.copysign(0.1, high), drawn)
    return apart.astype(np.float16).astype(np.float64)


def distinct(*shape: int) -> Array:
    """Every element another multiple of 1/8, in random order: no ties, and none that a small step could make."""
    count = math.prod(shape)
    return (np.random.default_rng(count).permutation(count).reshape(shape) - count // 2) / 8.0


def integers(*numbers: int) -> Array:
    return np.array(numbers, dtype=np.int64)
