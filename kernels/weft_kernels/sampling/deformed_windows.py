"""What a deformable convolution's windows hold: its moved places, in blocks of images that bound the memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.windows import Windows, windows_of
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array
from weft_kernels.sampling.taps import Tap, combined, linear_taps, rows_of

BLOCK_ELEMENTS: Final = 1 << 22
"""Elements that the windows of one block of images hold; one image may have more."""


@dataclass(frozen=True, slots=True)
class Deformed:
    """A block of images. Points are (images, groups of offsets, places of the kernel, windows), rows have the channels
    of a group of offsets."""

    windows: Windows
    shape: tuple[int, int, int, int]
    data: Array
    offset: Array
    mask: Array | None

    @property
    def channels(self) -> int:
        return int(self.data.shape[1])

    def rows(self, xp: Any) -> Array:
        """The images' elements as rows, see `weft_kernels.sampling.taps`."""
        images, groups, _, _ = self.shape
        by_group = self.data.reshape(images * groups, self.channels // groups, *self.windows.size)
        return rows_of(xp, by_group, statistics_dtype(xp, self.data))

    def taps(self, xp: Any) -> Iterator[Tap]:
        """The elements around each point."""
        images, groups, places, count = self.shape
        rank, dtype = len(self.windows.size), statistics_dtype(xp, self.data)
        offset = self.offset.reshape(images, groups, places, rank, count).astype(dtype, copy=False)
        along = []
        for axis, size in enumerate(self.windows.size):
            start = _starts(xp, self.windows, axis, dtype).reshape(places, count)
            along.append(linear_taps(xp, (offset[:, :, :, axis] + start).reshape(-1), size))
        owner = xp.repeat(xp.arange(images * groups), places * count)
        return combined(owner, along, self.windows.size)

    def weighed(self, points: Array) -> Array:
        """The points' rows (points, channels of a group) times the mask."""
        if self.mask is None:
            return points
        weighed: Array = points * self.mask.astype(points.dtype, copy=False).reshape(-1, 1)
        return weighed

    def columns(self, points: Array, group: int) -> Array:
        """(groups of weights, channels of a group * places, images * windows), from (points, channels of a group)."""
        images, groups, places, count = self.shape
        wide = points.reshape(images, groups, places, count, self.channels // groups).transpose(1, 4, 2, 0, 3)
        return wide.reshape(group, self.channels // group * places, images * count)

    def points(self, columns: Array) -> Array:
        """The reverse of `columns`."""
        images, groups, places, count = self.shape
        each = self.channels // groups
        wide = columns.reshape(groups, each, places, images, count).transpose(3, 0, 2, 4, 1)
        return wide.reshape(images * groups * places * count, each)


def deformed_blocks(
    data: Array, weights: Array, offset: Array, mask: Array | None, attributes: Mapping[str, AttributeValue]
) -> Iterator[tuple[slice, Deformed]]:
    """The images in blocks, each with the part of the batch that it is."""
    windows = windows_of(data.shape[2:], attributes.get, weights.shape[2:])
    places, count = math.prod(windows.kernel), math.prod(windows.count)
    step = max(1, BLOCK_ELEMENTS // max(1, data.shape[1] * places * count))
    for first in range(0, data.shape[0], step):
        part = slice(first, min(first + step, data.shape[0]))
        shape = (part.stop - first, as_int(attributes["offset_group"]), places, count)
        yield part, Deformed(windows, shape, data[part], offset[part], None if mask is None else mask[part])


def _starts(xp: Any, windows: Windows, axis: int, dtype: Any) -> Array:
    """Where each place of each window lies along an axis without an offset: (kernel ..., windows ...)."""
    rank = len(windows.size)
    inner = windows.dilations[axis] * xp.arange(windows.kernel[axis]) - windows.begin[axis]
    outer = windows.strides[axis] * xp.arange(windows.count[axis])
    inner = inner.reshape(-1, *(1,) * (2 * rank - 1 - axis))
    outer = outer.reshape(-1, *(1,) * (rank - 1 - axis))
    whole = xp.zeros((*windows.kernel, *windows.count), dtype=dtype)
    return whole + inner + outer  # type: ignore[no-any-return]  # xp is Any
