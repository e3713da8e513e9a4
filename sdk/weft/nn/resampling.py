"""Layers that make images larger or smaller without parameters."""

from __future__ import annotations

from collections.abc import Sequence

from weft import ops
from weft.expression import Expression, Operand
from weft.nn.layer import at_least_one
from weft.nn.stateless import Stateless
from weft.ops.neural import Pair

_MODES = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}
"""PyTorch's words -> ONNX's."""


class Upsample(Stateless):
    """(batch, c, h, w), `scale_factor` times as high and wide or of height and width `size`, as in PyTorch.

    `mode` is nearest, bilinear or bicubic. With `align_corners` the corners'
    centres stay where they are. Raises ValueError unless exactly one of `size` and `scale_factor` is given.
    """

    kind = "upsample"

    def __init__(
        self,
        size: Pair | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if (scale_factor is None) == (size is None):
            raise ValueError("an upsampling has a size or a scale_factor, and not both")
        if mode not in _MODES:
            raise ValueError(f"mode {mode!r} is none of {', '.join(_MODES)}")
        if align_corners and mode == "nearest":
            raise ValueError("align_corners has no meaning for mode 'nearest'")
        self.size, self.scale_factor, self.mode, self.align_corners = size, scale_factor, mode, align_corners

    def __call__(self, x: Operand, /) -> Expression:
        coordinates = "asymmetric" if self.mode == "nearest" else "half_pixel"
        return ops.resize(
            x,
            self.scale_factor,
            sizes=self.size,
            mode=_MODES[self.mode],
            coordinates="align_corners" if self.align_corners else coordinates,
            rounding="floor",
            name=self.own_label(),
        )


class PixelShuffle(Stateless):
    """(batch, c * upscale_factor ** 2, h, w) as (batch, c, h * upscale_factor, w * upscale_factor). Shi et al. 2016."""

    kind = "pixel_shuffle"

    def __init__(self, upscale_factor: int, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.upscale_factor = at_least_one("upscale_factor", upscale_factor)

    def __call__(self, x: Operand, /) -> Expression:
        return ops.depth_to_space(x, self.upscale_factor, mode="CRD", name=self.own_label())


class PixelUnshuffle(Stateless):
    """The reverse of PixelShuffle."""

    kind = "pixel_unshuffle"

    def __init__(self, downscale_factor: int, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.downscale_factor = at_least_one("downscale_factor", downscale_factor)

    def __call__(self, x: Operand, /) -> Expression:
        return ops.space_to_depth(x, self.downscale_factor, mode="CRD", name=self.own_label())
