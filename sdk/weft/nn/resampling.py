"""Layers that make images larger or smaller without parameters."""

from __future__ import annotations

from collections.abc import Sequence

from weft import ops
from weft.expression import Expression, Operand
from weft.nn.layer import at_least_one
from weft.nn.stateless import Stateless
from weft.ops.neural import Pair

_MODES = ("nearest", "linear", "cubic")


class Upsample(Stateless):
    """(batch, c, h, w), `scale` times as high and wide or of height and width `size`; places are those of PyTorch.

    `mode` is nearest, linear (which PyTorch calls bilinear) or cubic (bicubic). With `align_corners` the corners'
    centres stay where they are. Raises ValueError unless exactly one of `scale` and `size` is given.
    """

    kind = "upsample"

    def __init__(
        self,
        scale: float | Sequence[float] | None = None,
        *,
        size: Pair | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if (scale is None) == (size is None):
            raise ValueError("an upsampling has a scale or a size, and not both")
        if mode not in _MODES:
            raise ValueError(f"mode {mode!r} is none of {', '.join(_MODES)}")
        if align_corners and mode == "nearest":
            raise ValueError("align_corners has no meaning for mode 'nearest'")
        self.scale, self.size, self.mode, self.align_corners = scale, size, mode, align_corners

    def __call__(self, x: Operand, /) -> Expression:
        coordinates = "asymmetric" if self.mode == "nearest" else "half_pixel"
        return ops.resize(
            x,
            self.scale,
            sizes=self.size,
            mode=self.mode,
            coordinates="align_corners" if self.align_corners else coordinates,
            rounding="floor",
            name=self.own_label(),
        )


class PixelShuffle(Stateless):
    """(batch, c * factor ** 2, h, w) as (batch, c, h * factor, w * factor). Shi et al. 2016."""

    kind = "pixel_shuffle"

    def __init__(self, factor: int, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.factor = at_least_one("factor", factor)

    def __call__(self, x: Operand, /) -> Expression:
        return ops.depth_to_space(x, self.factor, mode="CRD", name=self.own_label())


class PixelUnshuffle(Stateless):
    """The reverse of PixelShuffle."""

    kind = "pixel_unshuffle"

    def __init__(self, factor: int, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.factor = at_least_one("factor", factor)

    def __call__(self, x: Operand, /) -> Expression:
        return ops.space_to_depth(x, self.factor, mode="CRD", name=self.own_label())
