"""Layers with weights: Linear and Conv2d."""

from __future__ import annotations

from weft import ops
from weft.expression import Expression, Operand
from weft.nn.convolution import Convolution
from weft.nn.initializers import Init, fan_in_uniform, zeros
from weft.nn.layer import Layer, as_expression, at_least_one
from weft.ops.neural import Pair


class Linear(Layer):
    """y = x W' + b over the last dimension: x (..., in_features) gives (..., out_features).

    Parameters: weight (out_features, in_features), bias (out_features). Weights start as `init` says, uniform within
    sqrt(1 / fan-in) unless set, the bias at zero.
    """

    kind = "linear"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        init: Init = fan_in_uniform,
        bias_init: Init = zeros,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.in_features = at_least_one("in_features", in_features)
        self.out_features = at_least_one("out_features", out_features)
        self.bias = bias
        self.init = init
        self.bias_init = bias_init

    def __call__(self, x: Operand, /) -> Expression:
        x = as_expression(x)
        self.check_size(x, -1, "in_features", self.in_features)
        weight = self.parameter("weight", (self.out_features, self.in_features), self.init, x.dtype)
        bias = self.parameter("bias", (self.out_features,), self.bias_init, x.dtype) if self.bias else None
        if x.rank == 2:
            return ops.gemm(x, weight, bias, trans_b=True, name=self.label())
        transposed = ops.transpose(weight, [1, 0], name=self.label("transposed"))
        if bias is None:
            return ops.matmul(x, transposed, name=self.label())
        return ops.add(ops.matmul(x, transposed, name=self.label("product")), bias, name=self.label())


class Conv2d(Convolution):
    """A convolution: x (batch, in_channels, h, w) gives (batch, out_channels, oh, ow).

    Parameters: weight (out_channels, in_channels / groups, kh, kw), bias (out_channels). `padding` is a count for all
    sides or one for each direction, or `same`: the output is as large as the input, for odd kernels with stride 1.
    Weights start as `init` says, uniform within sqrt(1 / fan-in) unless set, the bias at zero.
    """

    kind = "conv"

    def __init__(  # noqa: PLR0917 - the order of PyTorch's
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair | str = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        init: Init = fan_in_uniform,
        bias_init: Init = zeros,
        name: str | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size,
            stride=stride, dilation=dilation, groups=groups, bias=bias, init=init, bias_init=bias_init, name=name,
        )  # fmt: skip
        self.padding = self._padding(padding)

    def __call__(self, x: Operand, /) -> Expression:
        x = self.images(x)
        weight, bias = self.weights(x, (self.out_channels, self.in_channels // self.groups))
        return ops.conv(
            x,
            weight,
            bias,
            strides=self.stride,
            pads=self.padding,
            dilations=self.dilation,
            group=self.groups,
            name=self.label(),
        )

    def _padding(self, padding: Pair | str) -> Pair:
        if padding != "same":
            if isinstance(padding, str):
                raise ValueError(f"padding is a count, a pair of counts or 'same', not {padding!r}")
            return padding
        if any(size % 2 == 0 for size in self.kernel_size) or set(self.stride) != {1}:
            raise ValueError(
                f"padding 'same' is for odd kernels with stride 1, not kernel_size {self.kernel_size} with stride "
                f"{self.stride}"
            )
        return tuple(size // 2 * step for size, step in zip(self.kernel_size, self.dilation, strict=True))
