"""ConvTranspose2d."""

from __future__ import annotations

from weft import ops
from weft.expression import Expression, Operand
from weft.nn.initializers import Init, fan_in_uniform, zeros
from weft.nn.layer import Layer, as_expression, at_least_one
from weft.ops.neural import Pair, pair
from weft_graph.errors import ShapeError


class ConvTranspose2d(Layer):
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
        super().__init__(name)
        self.inputs = at_least_one("inputs", inputs)
        self.outputs = at_least_one("outputs", outputs)
        self.groups = at_least_one("groups", groups)
        if inputs % groups or outputs % groups:
            raise ValueError(f"{inputs} channels in and {outputs} out do not make {groups} groups")
        self.kernel = pair(kernel)
        self.strides = pair(strides)
        self.padding = padding
        self.output_padding = pair(output_padding)
        self.bias = bias
        self.init = init
        self.bias_init = bias_init

    def __call__(self, x: Operand, /) -> Expression:
        x = as_expression(x)
        if x.rank != 4:
            raise ShapeError(
                f"layer {self.scope.name!r}: a ConvTranspose2d takes (batch, channels, height, width), not {x.type}",
                node=self.scope.name,
            )
        self.check_size(x, 1, self.inputs, "channels")
        shape = (self.inputs, self.outputs // self.groups, *self.kernel)
        weight = self.parameter("weight", shape, self.init, x.dtype)
        bias = self.parameter("bias", (self.outputs,), self.bias_init, x.dtype) if self.bias else None
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
