"""Layers that bring their input to mean 0 and variance 1: over the batch, the sample, its channels, groups of these.

RMSNorm brings it to a mean square of 1 alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft import ops
from weft.expression import Expression, Operand
from weft.nn.initializers import ones, zeros
from weft.nn.layer import Layer, as_expression, at_least_one


class BatchNorm(Layer):
    """Batch normalization over all dimensions but channels: x (batch, channels, ...) gives the same shape.

    Parameters (channels): `scale` and `bias`, which are trained; `running_mean` and `running_var`, which follow the
    batches' statistics as running * momentum + batch * (1 - momentum), and are what evaluation reads.
    """

    kind = "batch_norm"

    def __init__(self, channels: int, *, epsilon: float = 1e-5, momentum: float = 0.9, name: str | None = None) -> None:
        super().__init__(name)
        self.channels = at_least_one("channels", channels)
        self.epsilon = epsilon
        self.momentum = momentum

    def __call__(self, x: Operand, /) -> Expression:
        x = as_expression(x)
        self.check_size(x, 1, self.channels, "channels")
        shape = (self.channels,)
        y, _, _ = ops.batch_normalization(
            x,
            self.parameter("scale", shape, ones, x.dtype),
            self.parameter("bias", shape, zeros, x.dtype),
            self.parameter("running_mean", shape, zeros, x.dtype, trainable=False),
            self.parameter("running_var", shape, ones, x.dtype, trainable=False),
            epsilon=self.epsilon,
            momentum=self.momentum,
            name=self.label(),
        )
        return y


class LayerNorm(Layer):
    """Normalizes each sample over its last dimensions, which have the sizes `shape`: x (..., *shape) gives the same.

    Parameters (shape): `scale`, and `bias` unless that is left out.
    """

    kind = "layer_norm"

    def __init__(
        self, shape: int | Sequence[int], *, bias: bool = True, epsilon: float = 1e-5, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.shape = _sizes(shape, "a LayerNorm")
        self.bias = bias
        self.epsilon = epsilon

    def __call__(self, x: Operand, /) -> Expression:
        x = as_expression(x)
        count = len(self.shape)
        for axis, size in enumerate(self.shape, -count):
            self.check_size(x, axis, size, "elements")
        scale = self.parameter("scale", self.shape, ones, x.dtype)
        bias = self.parameter("bias", self.shape, zeros, x.dtype) if self.bias else None
        return ops.layer_normalization(x, scale, bias, axis=-count, epsilon=self.epsilon, name=self.label())


class RMSNorm(Layer):
    """Each sample's last dimensions, which have the sizes `shape`, over the root of their mean square.

    x (..., *shape) gives the same. Parameter (shape): `scale`. Zhang and Sennrich 2019.
    """

    kind = "rms_norm"

    def __init__(self, shape: int | Sequence[int], *, epsilon: float = 1e-5, name: str | None = None) -> None:
        super().__init__(name)
        self.shape = _sizes(shape, "an RMSNorm")
        self.epsilon = epsilon

    def __call__(self, x: Operand, /) -> Expression:
        x = as_expression(x)
        count = len(self.shape)
        for axis, size in enumerate(self.shape, -count):
            self.check_size(x, axis, size, "elements")
        scale = self.parameter("scale", self.shape, ones, x.dtype)
        return ops.rms_normalization(x, scale, axis=-count, epsilon=self.epsilon, name=self.label())


class GroupNorm(Layer):
    """Normalizes each sample's groups of channels: x (batch, channels, ...) gives the same shape.

    Parameters (channels): `scale` and `bias`. Nothing depends on the batch, in training or after.
    """

    kind = "group_norm"

    def __init__(self, groups: int, channels: int, *, epsilon: float = 1e-5, name: str | None = None) -> None:
        super().__init__(name)
        self.groups = at_least_one("groups", groups)
        self.channels = at_least_one("channels", channels)
        if channels % groups:
            raise ValueError(f"{channels} channels do not make {groups} groups")
        self.epsilon = epsilon

    def __call__(self, x: Operand, /) -> Expression:
        x = as_expression(x)
        self.check_size(x, 1, self.channels, "channels")
        scale = self.parameter("scale", (self.channels,), ones, x.dtype)
        bias = self.parameter("bias", (self.channels,), zeros, x.dtype)
        return ops.group_normalization(x, scale, bias, self.groups, epsilon=self.epsilon, name=self.label())


class InstanceNorm(Layer):
    """Normalizes each sample's channels by themselves: x (batch, channels, spatial ...) gives the same shape.

    Parameters (channels): `scale` and `bias`.
    """

    kind = "instance_norm"

    def __init__(self, channels: int, *, epsilon: float = 1e-5, name: str | None = None) -> None:
        super().__init__(name)
        self.channels = at_least_one("channels", channels)
        self.epsilon = epsilon

    def __call__(self, x: Operand, /) -> Expression:
        x = as_expression(x)
        self.check_size(x, 1, self.channels, "channels")
        scale = self.parameter("scale", (self.channels,), ones, x.dtype)
        bias = self.parameter("bias", (self.channels,), zeros, x.dtype)
        return ops.instance_normalization(x, scale, bias, epsilon=self.epsilon, name=self.label())


def _sizes(shape: int | Sequence[int], what: str) -> tuple[int, ...]:
    """Sizes of the dimensions that `what` normalizes. Raises ValueError for none, and for one below 1."""
    listed = (shape,) if isinstance(shape, int) else tuple(shape)
    if not listed:
        raise ValueError(f"{what} normalizes at least one dimension")
    return tuple(at_least_one("a size", size) for size in listed)
