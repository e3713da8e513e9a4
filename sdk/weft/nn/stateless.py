"""Layers without parameters, for use in a Sequential."""

from __future__ import annotations

from weft import ops
from weft.expression import Expression, Operand
from weft.nn.layer import Layer
from weft.ops.neural import Pair
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
        self, kernel: Pair = 2, *, strides: Pair | None = None, pads: Pair = 0, name: str | None = None
    ) -> None:
        super().__init__(name=name)
        self.kernel, self.strides, self.pads = kernel, strides, pads

    def __call__(self, x: Operand, /) -> Expression:
        return ops.max_pool(x, self.kernel, strides=self.strides, pads=self.pads, name=self.own_label())


class AvgPool2d(Stateless):
    """The mean of each window of (batch, c, h, w)."""

    kind = "average_pool"

    def __init__(
        self, kernel: Pair = 2, *, strides: Pair | None = None, pads: Pair = 0, name: str | None = None
    ) -> None:
        super().__init__(name=name)
        self.kernel, self.strides, self.pads = kernel, strides, pads

    def __call__(self, x: Operand, /) -> Expression:
        return ops.average_pool(x, self.kernel, strides=self.strides, pads=self.pads, name=self.own_label())


class Dropout(Stateless):
    """Zeroes a share `ratio` of the elements in training; the identity in evaluation."""

    kind = "dropout"

    def __init__(self, ratio: float = 0.5, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.ratio = ratio

    def __call__(self, x: Operand, /) -> Expression:
        return ops.dropout(x, self.ratio, name=self.own_label())


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
