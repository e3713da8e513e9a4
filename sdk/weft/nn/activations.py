"""Activation functions as layers, for use in a Sequential."""

from __future__ import annotations

from typing import Literal

from weft import ops
from weft.expression import Expression, Operand
from weft.nn.initializers import constant
from weft.nn.layer import Layer, as_expression, at_least_one
from weft.nn.stateless import Stateless
from weft_graph.errors import ShapeError


class LeakyReLU(Stateless):
    """x, where it is below 0 negative_slope * x."""

    kind = "leaky_relu"

    def __init__(self, negative_slope: float = 0.01, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.negative_slope = negative_slope

    def __call__(self, x: Operand, /) -> Expression:
        return ops.leaky_relu(x, self.negative_slope, name=self.own_label())


class PReLU(Layer):
    """x, where it is below 0 times a slope that is trained: one for all, or one for each of `num_parameters` channels
    (axis 1).

    Parameter: slope, which starts at `init`. He et al. 2015.
    """

    kind = "prelu"

    def __init__(self, num_parameters: int = 1, init: float = 0.25, *, name: str | None = None) -> None:
        super().__init__(name)
        self.num_parameters = at_least_one("num_parameters", num_parameters)
        self.init = init

    def __call__(self, x: Operand, /) -> Expression:
        x = as_expression(x)
        if self.num_parameters == 1:
            slope = self.parameter("slope", (1,), constant(self.init), x.dtype)
            if x.rank == 0:
                raise ShapeError(f"layer {self.scope.name!r}: a PReLU takes no scalar", node=self.scope.name)
            return ops.prelu(x, slope, name=self.label())
        self.check_size(x, 1, "num_parameters", self.num_parameters)
        shape = (self.num_parameters, *(1,) * (x.rank - 2))
        return ops.prelu(x, self.parameter("slope", shape, constant(self.init), x.dtype), name=self.label())


class ELU(Stateless):
    """x, where it is below 0 alpha * (exp(x) - 1)."""

    kind = "elu"

    def __init__(self, alpha: float = 1.0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.alpha = alpha

    def __call__(self, x: Operand, /) -> Expression:
        return ops.elu(x, self.alpha, name=self.own_label())


class SELU(Stateless):
    """ELU with the two numbers that keep mean 0 and variance 1 over layers."""

    kind = "selu"

    def __call__(self, x: Operand, /) -> Expression:
        return ops.selu(x, name=self.own_label())


class GELU(Stateless):
    """x * P(a standard normal number is below x), or with a tanh for P where `approximate` is "tanh"."""

    kind = "gelu"

    def __init__(self, approximate: Literal["none", "tanh"] = "none", *, name: str | None = None) -> None:
        super().__init__(name=name)
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate is {approximate!r}; it should be 'none' or 'tanh'")
        self.approximate = approximate

    def __call__(self, x: Operand, /) -> Expression:
        return ops.gelu(x, approximate=self.approximate == "tanh", name=self.own_label())


class Softplus(Stateless):
    """log(exp(x) + 1)."""

    kind = "softplus"

    def __call__(self, x: Operand, /) -> Expression:
        return ops.softplus(x, name=self.own_label())


class HardSwish(Stateless):
    """x * max(0, min(1, x / 6 + 1 / 2))."""

    kind = "hard_swish"

    def __call__(self, x: Operand, /) -> Expression:
        return ops.hard_swish(x, name=self.own_label())


class Mish(Stateless):
    """x * tanh(log(exp(x) + 1))."""

    kind = "mish"

    def __call__(self, x: Operand, /) -> Expression:
        return ops.mish(x, name=self.own_label())
