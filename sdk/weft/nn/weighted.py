"""Layers with weights: Linear and Conv2d."""

from __future__ import annotations

from weft import ops
from weft.expression import Expression, Operand
from weft.nn.convolution import Convolution
from weft.nn.initializers import Init, fan_in_uniform, zeros
from weft.nn.layer import Layer, as_expression, at_least_one
from weft.ops.neural import Pair


class Linear(Layer):
    """y = x W' + b over the last dimension: x (..., inputs) gives (..., outputs).

    Parameters: weight (outputs, inputs), bias (outputs). Weights start as `init` says, uniform within
    sqrt(1 / fan-in) unless set, the bias at zero.
    """

    kind = "linear"

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool = True,
        init: Init = fan_in_uniform,
        bias_init: Init = zeros,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.inputs = at_least_one("inputs", inputs)
        self.outputs = at_least_one("outputs", outputs)
        self.bias = bias
        self.init = init
        self.bias_init = bias_init

    def __call__(self, x: Operand, /) -> Expression:
        x = as_expression(x)
        self.check_size(x, -1, self.inputs, "inputs")
        weight = self.parameter("weight", (self.outputs, self.inputs), self.init, x.dtype)
        bias = self.parameter("bias", (self.outputs,), self.bias_init, x.dtype) if self.bias else None
        if x.rank == 2:
            return ops.gemm(x, weight, bias, trans_b=True, name=self.label())
        transposed = ops.transpose(weight, [1, 0], name=self.label("transposed"))
        if bias is None:
            return ops.matmul(x, transposed, name=self.label())
        return ops.add(ops.matmul(x, transposed, name=self.label("product")), bias, name=self.label())


class Conv2d(Convolution):
    """A convolution: x (batch, inputs, h, w) gives (batch, outputs, oh, ow).

    Parameters: weight (outputs, inputs / groups, kh, kw), bias (outputs). `padding` is a count for all sides or one for
    each direction, or `same`: the output is as large as the input, for odd kernels with stride 1. Weights start as
    `init` says, uniform within sqrt(1 / fan-in) unless set, the bias at zero.
    """

    kind = "conv"

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Pair = 3,
        *,
        strides: Pair = 1,
        padding: Pair | str = 0,
        groups: int = 1,
        bias: bool = True,
        init: Init = fan_in_uniform,
        bias_init: Init = zeros,
        name: str | None = None,
    ) -> None:
        super().__init__(
            inputs, outputs, kernel,
            strides=strides, groups=groups, bias=bias, init=init, bias_init=bias_init, name=name,
        )  # fmt: skip
        self.padding = _padding(padding, self.kernel, self.strides)

    def __call__(self, x: Operand, /) -> Expression:
        x = self.images(x)
        weight, bias = self.weights(x, (self.outputs, self.inputs // self.groups))
        return ops.conv(x, weight, bias, strides=self.strides, pads=self.padding, group=self.groups, name=self.label())


def _padding(padding: Pair | str, kernel: tuple[int, ...], strides: tuple[int, ...]) -> Pair:
    if padding != "same":
        if isinstance(padding, str):
            raise ValueError(f"padding is a count, a pair of counts or 'same', not {padding!r}")
        return padding
    if any(size % 2 == 0 for size in kernel) or set(strides) != {1}:
        raise ValueError(f"padding 'same' is for odd kernels with stride 1, not kernel {kernel} with strides {strides}")
    return tuple(size // 2 for size in kernel)
