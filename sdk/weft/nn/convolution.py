"""What Conv2d and ConvTranspose2d share: channels, kernel, stride, groups, and images that are checked."""

from __future__ import annotations

from weft.expression import Expression, Operand
from weft.nn.initializers import Init
from weft.nn.layer import Layer, as_expression, at_least_one
from weft.ops.neural import Pair, pair
from weft_graph.errors import ShapeError


class Convolution(Layer):
    """A layer whose weight is a kernel, over images (batch, channels, height, width)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        *,
        stride: Pair,
        dilation: Pair,
        groups: int,
        bias: bool,
        init: Init,
        bias_init: Init,
        name: str | None,
    ) -> None:
        super().__init__(name)
        self.in_channels = at_least_one("in_channels", in_channels)
        self.out_channels = at_least_one("out_channels", out_channels)
        self.groups = at_least_one("groups", groups)
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"{in_channels} channels in and {out_channels} out do not make {groups} groups")
        self.kernel_size = pair(kernel_size)
        self.stride = pair(stride)
        self.dilation = pair(dilation)
        self.bias = bias
        self.init = init
        self.bias_init = bias_init

    def images(self, x: Operand) -> Expression:
        """`x`, as images of this layer's channels. Raises ShapeError, naming the layer."""
        x = as_expression(x)
        if x.rank != 4:
            raise ShapeError(
                f"layer {self.scope.name!r}: a {type(self).__name__} takes (batch, channels, height, width), "
                f"not {x.type}",
                node=self.scope.name,
            )
        self.check_size(x, 1, "in_channels", self.in_channels)
        return x

    def weights(self, x: Expression, channels: tuple[int, int]) -> tuple[Expression, Expression | None]:
        """The kernel, whose shape begins with `channels`, and the bias if there is one."""
        weight = self.parameter("weight", (*channels, *self.kernel_size), self.init, x.dtype)
        return weight, self.parameter("bias", (self.out_channels,), self.bias_init, x.dtype) if self.bias else None
