"""ConvTranspose2d."""

from __future__ import annotations

from weft import ops
from weft.expression import Expression, Operand
from weft.nn.convolution import Convolution
from weft.nn.initializers import Init, fan_in_uniform, zeros
from weft.ops.neural import Pair, pair


class ConvTranspose2d(Convolution):
    """A convolution turned around, which makes images larger: x (batch, inputs, h, w) gives (batch, outputs, oh, ow).

    Parameters: weight (inputs, outputs / groups, kh, kw), bias (outputs). oh = (h - 1) * stride - 2 * padding + kh +
    output_padding. Weights start as `init` says, uniform within sqrt(1 / fan-in) unless set, the bias at zero.
    """

    kind = "conv_transpose"

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Pair = 3,
        *,
        strides: Pair = 1,
        padding: Pair = 0,
        output_padding: Pair = 0,
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
        self.padding = padding
        self.output_padding = pair(output_padding)

    def __call__(self, x: Operand, /) -> Expression:
        x = self.images(x)
        weight, bias = self.weights(x, (self.inputs, self.outputs // self.groups))
        return ops.conv_transpose(
            x,
            weight,
            bias,
            strides=self.strides,
            pads=self.padding,
            output_padding=self.output_padding,
            group=self.groups,
            name=self.label(),
        )
