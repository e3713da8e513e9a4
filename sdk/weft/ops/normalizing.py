"""Operators that bring parts of a tensor to mean 0 and variance 1, or to a norm of 1."""

from __future__ import annotations

from weft.expression import Expression, Operand
from weft.ops.generic import Name, one


def layer_normalization(
    x: Operand,
    scale: Operand,
    bias: Operand | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    name: Name = None,
) -> Expression:
    """Each sample's elements from `axis` on normalized, scaled and shifted. Ba, Kiros and Hinton 2016."""
    return one("LayerNormalization", x, scale, bias, axis=axis, epsilon=epsilon, name=name)


def rms_normalization(
    x: Operand, scale: Operand, *, axis: int = -1, epsilon: float = 1e-5, name: Name = None
) -> Expression:
    """Each sample's elements from `axis` on over the root of their mean square, scaled. Zhang and Sennrich 2019."""
    return one("RMSNormalization", x, scale, axis=axis, epsilon=epsilon, name=name)


def instance_normalization(
    x: Operand, scale: Operand, bias: Operand, *, epsilon: float = 1e-5, name: Name = None
) -> Expression:
    """x (batch, c, spatial ...), each sample's channels normalized, scaled and shifted by numbers (c)."""
    return one("InstanceNormalization", x, scale, bias, epsilon=epsilon, name=name)


def group_normalization(
    x: Operand, scale: Operand, bias: Operand, groups: int, *, epsilon: float = 1e-5, name: Name = None
) -> Expression:
    """x (batch, c, ...), each sample's groups of channels normalized; scale and bias (c). Wu and He 2018."""
    return one("GroupNormalization", x, scale, bias, num_groups=groups, epsilon=epsilon, name=name)


def lp_normalization(x: Operand, axis: int = -1, *, p: int = 2, name: Name = None) -> Expression:
    """x over its norm along `axis`: of squares, or for p 1 of absolute values; 0 where that is 0."""
    return one("LpNormalization", x, axis=axis, p=p, name=name)


def local_response_normalization(
    x: Operand, size: int, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, name: Name = None
) -> Expression:
    """Each element over a power of the mean square of `size` channels around it. Krizhevsky et al. 2012."""
    return one("LRN", x, size=size, alpha=alpha, beta=beta, bias=bias, name=name)
