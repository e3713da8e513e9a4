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

    Parameters (num_features): `scale` and `bias`, which are trained; `running_mean` and `running_var`, which follow the
    batches' statistics as running * (1 - momentum) + batch * momentum, and are what evaluation reads.
    """

    kind = "batch_norm"

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, *, name: str | None = None) -> None:
        super().__init__(name)
        self.num_features = at_least_one("num_features", num_features)
        self.eps = eps
        self.momentum = momentum

    def __call__(self, x: Operand, /) -> Expression:
        x = as_expression(x)
        self.check_size(x, 1, "num_features", self.num_features)
        shape = (self.num_features,)
        y, _, _ = ops.batch_normalization(
            x,
            self.parameter("scale", shape, ones, x.dtype),
            self.parameter("bias", shape, zeros, x.dtype),
            self.parameter("running_mean", shape, zeros, x.dtype, trainable=False),
            self.parameter("running_var", shape, ones, x.dtype, trainable=False),
            epsilon=self.eps,
            momentum=1 - self.momentum,
            name=self.label(),
        )
        return y


class LayerNorm(Layer):
    """Normalizes each sample over its last dimensions, which have the sizes `shape`: x (..., *shape) gives the same.

    Parameters (shape): `scale`, and `bias` unless that is left out.
    """

    kind = "layer_norm"

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, *, bias: bool = True, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.normalized_shape = _sizes(normalized_shape, "a LayerNorm")
        self.bias = bias
        self.eps = eps

    def __call__(self, x: Operand, /) -> Expression:
        x = as_expression(x)
        count = len(self.normalized_shape)
        for axis, size in enumerate(self.normalized_shape, -count):
            self.check_size(x, axis, "normalized_shape", size)
        scale = self.parameter("scale", self.normalized_shape, ones, x.dtype)
        bias = self.parameter("bias", self.normalized_shape, zeros, x.dtype) if self.bias else None
        return ops.layer_normalization(x, scale, bias, axis=-count, epsilon=self.eps, name=self.label())


class RMSNorm(Layer):
    """Each sample's last dimensions, which have the sizes `shape`, over the root of their mean square.

    x (..., *shape) gives the same. Parameter (shape): `scale`. Zhang and Sennrich 2019.
    """

    kind = "rms_norm"

    def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-5, *, name: str | None = None) -> None:
        super().__init__(name)
        self.normalized_shape = _sizes(normalized_shape, "an RMSNorm")
        self.eps = eps

    def __call__(self, x: Operand, /) -> Expression:
        x = as_expression(x)
        count = len(self.normalized_shape)
        for axis, size in enumerate(self.normalized_shape, -count):
            self.check_size(x, axis, "normalized_shape", size)
        scale = self.parameter("scale", self.normalized_shape, ones, x.dtype)
        return ops.rms_normalization(x, scale, axis=-count, epsilon=self.eps, name=self.label())


class GroupNorm(Layer):
    """Normalizes each sample's groups of channels: x (batch, channels, ...) gives the same shape.

    Parameters (num_features): `scale` and `bias`. Nothing depends on the batch, in training or after.
    """

    kind = "group_norm"

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, *, name: str | None = None) -> None:
        super().__init__(name)
        self.num_groups = at_least_one("num_groups", num_groups)
        self.num_channels = at_least_one("num_channels", num_channels)
        if num_channels % num_groups:
            raise ValueError(f"{num_channels} channels do not make {num_groups} groups")
        self.eps = eps

    def __call__(self, x: Operand, /) -> Expression:
        x = as_expression(x)
        self.check_size(x, 1, "num_channels", self.num_channels)
        scale = self.parameter("scale", (self.num_channels,), ones, x.dtype)
        bias = self.parameter("bias", (self.num_channels,), zeros, x.dtype)
        return ops.group_normalization(x, scale, bias, self.num_groups, epsilon=self.eps, name=self.label())


class InstanceNorm(Layer):
    """Normalizes each sample's channels by themselves: x (batch, channels, spatial ...) gives the same shape.

    Parameters (num_features): `scale` and `bias`.
    """

    kind = "instance_norm"

    def __init__(self, num_features: int, eps: float = 1e-5, *, name: str | None = None) -> None:
        super().__init__(name)
        self.num_features = at_least_one("num_features", num_features)
        self.eps = eps

    def __call__(self, x: Operand, /) -> Expression:
        x = as_expression(x)
        self.check_size(x, 1, "num_features", self.num_features)
        scale = self.parameter("scale", (self.num_features,), ones, x.dtype)
        bias = self.parameter("bias", (self.num_features,), zeros, x.dtype)
        return ops.instance_normalization(x, scale, bias, epsilon=self.eps, name=self.label())


def _sizes(shape: int | Sequence[int], what: str) -> tuple[int, ...]:
    """Sizes of the dimensions that `what` normalizes. Raises ValueError for none, and for one below 1."""
    listed = (shape,) if isinstance(shape, int) else tuple(shape)
    if not listed:
        raise ValueError(f"{what} normalizes at least one dimension")
    return tuple(at_least_one("a size", size) for size in listed)
