"""The functions that gates have, and their slopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from weft_graph.shapes.recurrent import Activation
from weft_kernels.kernel import Array


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate's function. What goes into it is bounded by `clip` on both sides, where that is set."""

    xp: Any
    activation: Activation
    clip: float | None

    def __call__(self, x: Array) -> Array:
        y: Array = _FUNCTIONS[self.activation.name](self.xp, self._bounded(x), self.activation)
        return y

    def slope(self, x: Array, y: Array) -> Array:
        """The slope at x, where the function gave y: 0 beyond the bounds, and on them that of the function."""
        slope: Array = _SLOPES[self.activation.name](self.xp, self._bounded(x), y, self.activation)
        if self.clip is None:
            return slope
        bounded: Array = self.xp.where(self.xp.abs(x) <= self.clip, slope, x.dtype.type(0))
        return bounded

    def _bounded(self, x: Array) -> Array:
        return x if self.clip is None else self.xp.clip(x, -self.clip, self.clip)


def _sigmoid(xp: Any, x: Array, _how: Activation) -> Array:
    # With e = exp(-|x|) in (0, 1]: 1 / (1 + e) for x >= 0, and e / (1 + e) below.
    decayed = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, x.dtype.type(1), decayed) / (1 + decayed)  # type: ignore[no-any-return]  # xp is Any


def _of_kind(x: Array, number: float) -> Any:
    return x.dtype.type(number)


_FUNCTIONS: Final[Mapping[str, Callable[[Any, Array, Activation], Array]]] = {
    "Relu": lambda xp, x, _how: xp.maximum(x, _of_kind(x, 0)),
    "Tanh": lambda xp, x, _how: xp.tanh(x),
    "Sigmoid": _sigmoid,
    "Affine": lambda _xp, x, how: x * how.alpha + how.beta,
    "LeakyRelu": lambda xp, x, how: xp.where(x >= 0, x, x * how.alpha),
    "ThresholdedRelu": lambda xp, x, how: xp.where(x >= how.alpha, x, _of_kind(x, 0)),
    "ScaledTanh": lambda xp, x, how: xp.tanh(x * how.beta) * how.alpha,
    "HardSigmoid": lambda xp, x, how: xp.clip(x * how.alpha + how.beta, 0, 1),
    "Elu": lambda xp, x, how: xp.where(x >= 0, x, xp.expm1(xp.minimum(x, _of_kind(x, 0))) * how.alpha),
    "Softsign": lambda xp, x, _how: x / (1 + xp.abs(x)),
    "Softplus": lambda xp, x, _how: xp.maximum(x, _of_kind(x, 0)) + xp.log1p(xp.exp(-xp.abs(x))),
}


def _hard_slope(xp: Any, x: Array, _y: Array, how: Activation) -> Array:
    level = x * how.alpha + how.beta
    inside = (level > 0) & (level < 1)
    return xp.where(inside, _of_kind(x, how.alpha), _of_kind(x, 0))  # type: ignore[no-any-return]  # xp is Any


_SLOPES: Final[Mapping[str, Callable[[Any, Array, Array, Activation], Array]]] = {
    "Relu": lambda _xp, x, _y, _how: (x > 0).astype(x.dtype),
    "Tanh": lambda _xp, _x, y, _how: 1 - y * y,
    "Sigmoid": lambda _xp, _x, y, _how: y * (1 - y),
    "Affine": lambda xp, x, _y, how: xp.full_like(x, how.alpha),
    "LeakyRelu": lambda xp, x, _y, how: xp.where(x >= 0, _of_kind(x, 1), _of_kind(x, how.alpha)),
    "ThresholdedRelu": lambda _xp, x, _y, how: (x >= how.alpha).astype(x.dtype),
    "ScaledTanh": lambda xp, x, _y, how: (1 - xp.tanh(x * how.beta) ** 2) * (how.alpha * how.beta),
    "HardSigmoid": _hard_slope,
    "Elu": lambda xp, x, y, how: xp.where(x >= 0, _of_kind(x, 1), y + how.alpha),
    "Softsign": lambda xp, x, _y, _how: 1 / (1 + xp.abs(x)) ** 2,
    "Softplus": lambda xp, x, _y, how: _sigmoid(xp, x, how),
}
