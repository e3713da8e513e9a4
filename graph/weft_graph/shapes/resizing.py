"""What Resize makes of each dimension: how many elements, by which scale, of which region."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from weft_graph.shapes.broadcasting import normalised

POLICIES: Final = ("stretch", "not_larger", "not_smaller")

SIMPLE: Final = 1000
"""The largest denominator of a ratio that somebody may have written: float32 tells all such near 1 apart."""

Region = Sequence[float]
"""The beginnings of a crop along the axes, then the ends, as shares of the input."""


@dataclass(frozen=True, slots=True)
class Along:
    """One dimension: `size` elements become `count`, `scale` times as many but for rounding.

    `start` and `end` bound the region that is read, as shares of the input; only a crop reads another than (0, 1).
    """

    axis: int
    size: int
    count: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    @property
    def is_same(self) -> bool:
        """Whether nothing happens, whatever the mode."""
        return self.size == self.count and self.scale == 1 and (self.start, self.end) == (0, 1)


def resized_axes(rank: int, axes: Sequence[int] | None) -> tuple[int, ...]:
    """The axes that the lists refer to, counted from the front, in their order. Raises ValueError for bad ones."""
    counted = tuple(normalised(axis, rank) for axis in (range(rank) if axes is None else axes))
    if len(set(counted)) < len(counted):
        raise ValueError(f"axes {list(axes or ())} name one of {rank} dimensions twice")
    return counted


def check_length(name: str, numbers: Sequence[object], axes: Sequence[int], each: int = 1) -> None:
    """Raises ValueError unless there are `each` numbers for every axis."""
    if len(numbers) != each * len(axes):
        raise ValueError(f"{name} {list(numbers)} must be {each * len(axes)} numbers, for {len(axes)} axes")


def by_scales(
    shape: Sequence[int], axes: Sequence[int], scales: Sequence[float], region: Region | None
) -> tuple[Along, ...]:
    """Each axis by its scale, a number of float32. Raises ValueError where one is not above 0, or far too large."""
    check_length("scales", scales, axes)
    bounds = _bounds(axes, region)
    return tuple(
        Along(axis, shape[axis], *_scaled(shape[axis], scale, start, end), start, end)
        for axis, scale, (start, end) in zip(axes, scales, bounds, strict=True)
    )


def by_sizes(
    shape: Sequence[int], axes: Sequence[int], sizes: Sequence[int], region: Region | None, policy: str
) -> tuple[Along, ...]:
    """Each axis to its size, or to what keeps their proportions. Raises ValueError where a size cannot be had."""
    check_length("sizes", sizes, axes)
    if any(size < 0 or (size == 0) != (shape[axis] == 0) for axis, size in zip(axes, sizes, strict=True)):
        raise ValueError(f"sizes {list(sizes)} must be above 0, and 0 just where {list(shape)} is")
    ratios = [Fraction(size, shape[axis] or 1) for axis, size in zip(axes, sizes, strict=True)]
    counts = tuple(sizes)
    if policy != "stretch" and axes:
        one = min(ratios) if policy == "not_larger" else max(ratios)
        ratios = [one] * len(axes)
        counts = tuple(math.floor(one * shape[axis] + Fraction(1, 2)) for axis in axes)
    return tuple(
        Along(axis, shape[axis], count, float(ratio) if shape[axis] else 1.0, start, end)
        for axis, count, ratio, (start, end) in zip(axes, counts, ratios, _bounds(axes, region), strict=True)
    )


def _bounds(axes: Sequence[int], region: Region | None) -> list[tuple[float, float]]:
    if region is None:
        return [(0.0, 1.0)] * len(axes)
    check_length("roi", region, axes, each=2)
    return [(float(region[place]), float(region[place + len(axes)])) for place in range(len(axes))]


def _scaled(size: int, scale: float, start: float, end: float) -> tuple[int, float]:
    """(count, scale). The product is float32's, as in ONNX's own inference: 3 * 1.6666666 is 5 there."""
    if not (0 < scale < math.inf):
        raise ValueError(f"scale {scale} must be a number above 0")
    wide = size * (end - start) * float(scale)
    if not wide <= 2**53:
        raise ValueError(f"scale {scale} of {size} elements gives far too many")
    count = int(np.float32(max(wide, 0)))
    return count, _meant(size, count, scale)


def _meant(size: int, count: int, scale: float) -> float:
    """The scale that a number of float32 stands for: the sizes' ratio, a simple one, or a decimal one."""
    simple = Fraction(scale).limit_denominator(SIMPLE)
    for meant in (Fraction(count, size or 1), simple):
        if meant and np.float32(float(meant)) == np.float32(scale):
            return float(meant)
    return float(str(np.float32(scale)))
