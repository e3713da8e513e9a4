"""BatchNorm."""

from __future__ import annotations

from weft import ops
from weft.expression import Expression, Operand
from weft.nn.initializers import ones, zeros
from weft.nn.layer import Layer, as_expression, at_least_one


class BatchNorm(Layer):
    """Batch normalization over all dimensions but channels: x (batch, channels, ...) gives the same shape.

    Parameters (channels): `scale` and `bias`, which are trained; `running_mean` and `running_var`, which follow the
    batches' statistics as running * momentum + batch * (1 - momentum), and are what evaluation reads.
    """

    kind = "batch_norm"

    def __init__(self, channels: int, *, epsilon: float = 1e-5, momentum: float = 0.9, name: str | None = None) -> None:
        super().__init__(name)
        self.channels = at_least_one("channels", channels)
        self.epsilon = epsilon
        self.momentum = momentum

    def __call__(self, x: Operand, /) -> Expression:
        x = as_expression(x)
        self.check_size(x, 1, self.channels, "channels")
        shape = (self.channels,)
        y, _, _ = ops.batch_normalization(
            x,
            self.parameter("scale", shape, ones, x.dtype),
            self.parameter("bias", shape, zeros, x.dtype),
            self.parameter("running_mean", shape, zeros, x.dtype, trainable=False),
            self.parameter("running_var", shape, ones, x.dtype, trainable=False),
            epsilon=self.epsilon,
            momentum=self.momentum,
            name=self.label(),
        )
        return y
