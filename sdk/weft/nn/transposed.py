"""ConvTranspose2d."""

from __future__ import annotations

from weft import ops
from weft.expression import Expression, Operand
from weft.nn.convolution import Convolution
from weft.nn.initializers import Init, fan_in_uniform, zeros
from weft.ops.neural import Pair, pair


class ConvTranspose2d(Convolution):
    """A convolution turned around, which makes images larger: x (batch, in_channels, h, w) gives
    (batch, out_channels, oh, ow).

    Parameters: weight (in_channels, out_channels / groups, kh, kw), bias (out_channels). oh = (h - 1) * stride - 2 *
    padding + dilation * (kh - 1) + output_padding + 1. Weights start as `init` says, uniform within sqrt(1 / fan-in)
    unless set, the bias at zero.
    """

    kind = "conv_transpose"

    def __init__(  # noqa: PLR0917 - the order of PyTorch's
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        output_padding: Pair = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Pair = 1,
        *,
        init: Init = fan_in_uniform,
        bias_init: Init = zeros,
        name: str | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size,
            stride=stride, dilation=dilation, groups=groups, bias=bias, init=init, bias_init=bias_init, name=name,
        )  # fmt: skip
        self.padding = padding
        self.output_padding = pair(output_padding)

    def __call__(self, x: Operand, /) -> Expression:
        x = self.images(x)
        weight, bias = self.weights(x, (self.in_channels, self.out_channels // self.groups))
        return ops.conv_transpose(
            x,
            weight,
            bias,
            strides=self.stride,
            pads=self.padding,
            dilations=self.dilation,
            output_padding=self.output_padding,
            group=self.groups,
            name=self.label(),
        )
