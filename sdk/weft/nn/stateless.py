"""Layers without parameters, for use in a Sequential."""

from __future__ import annotations

from weft import ops
from weft.expression import Expression, Operand
from weft.nn.layer import Layer
from weft.ops.neural import Pair, pair
from weft.records import Label


class Stateless(Layer):
    """A layer of one node. In a Sequential its node keeps the operator's name, which says more than a place."""

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name)

    def own_label(self) -> Label | None:
        return self.label() if self.name is not None else None


class GlobalMaxPool2d(Stateless):
    """The largest element of each channel: (batch, c, h, w) gives (batch, c, 1, 1)."""

    kind = "global_max_pool"

    def __call__(self, x: Operand, /) -> Expression:
        return ops.global_max_pool(x, name=self.own_label())


class GlobalAvgPool2d(Stateless):
    """The mean of each channel: (batch, c, h, w) gives (batch, c, 1, 1)."""

    kind = "global_average_pool"

    def __call__(self, x: Operand, /) -> Expression:
        return ops.global_average_pool(x, name=self.own_label())


class MaxPool2d(Stateless):
    """The largest element of each window of (batch, c, h, w)."""

    kind = "max_pool"

    def __init__(
        self, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0, *, name: str | None = None
    ) -> None:
        super().__init__(name=name)
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def __call__(self, x: Operand, /) -> Expression:
        return ops.max_pool(x, self.kernel_size, strides=self.stride, pads=self.padding, name=self.own_label())


class AvgPool2d(Stateless):
    """The mean of each window of (batch, c, h, w); zeros of the padding count unless `count_include_pad` is False."""

    kind = "average_pool"

    def __init__(
        self,
        kernel_size: Pair,
        stride: Pair | None = None,
        padding: Pair = 0,
        *,
        count_include_pad: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.count_include_pad = count_include_pad and any(pair(padding))

    def __call__(self, x: Operand, /) -> Expression:
        return ops.average_pool(
            x,
            self.kernel_size,
            strides=self.stride,
            pads=self.padding,
            count_include_pad=self.count_include_pad,
            name=self.own_label(),
        )


class Dropout(Stateless):
    """Zeroes a share `p` of the elements in training; the identity in evaluation."""

    kind = "dropout"

    def __init__(self, p: float = 0.5, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.p = p

    def __call__(self, x: Operand, /) -> Expression:
        return ops.dropout(x, self.p, name=self.own_label())


class Flatten(Stateless):
    """(batch, ...) as (batch, all the rest)."""

    kind = "flatten"

    def __call__(self, x: Operand, /) -> Expression:
        return ops.flatten(x, 1, name=self.own_label())


class ReLU(Stateless):
    """max(x, 0)."""

    kind = "relu"

    def __call__(self, x: Operand, /) -> Expression:
        return ops.relu(x, name=self.own_label())


class Sigmoid(Stateless):
    """1 / (1 + exp(-x))."""

    kind = "sigmoid"

    def __call__(self, x: Operand, /) -> Expression:
        return ops.sigmoid(x, name=self.own_label())


class Tanh(Stateless):
    """The hyperbolic tangent of x."""

    kind = "tanh"

    def __call__(self, x: Operand, /) -> Expression:
        return ops.tanh(x, name=self.own_label())
