"""The points that RoiAlign samples: worked out on the host from the boxes' numbers, box by box of equal counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft_graph.attributes import as_float, as_int
from weft_graph.ir import AttributeValue
from weft_kernels.kernel import Array
from weft_kernels.sampling.taps import Tap, combined

BLOCK_ELEMENTS: Final = 1 << 21
"""Numbers of all channels that are read at once for one tap; one box may have more."""

MOST_POINTS: Final = 1 << 22
"""Points of one box. A box of a few numbers could ask for any amount of work."""


@dataclass(frozen=True, slots=True)
class BoxPoints:
    """Boxes with one count of points a bin. Points are (boxes, bins, points of a bin)."""

    boxes: Array
    shape: tuple[int, int, int]
    along: tuple[tuple[Tap, ...], tuple[Tap, ...]]
    images: Array
    size: tuple[int, int]

    def taps(self, xp: Any) -> Iterator[Tap]:
        """The four elements around each point, as rows; on the device."""
        for tap in combined(self.images, self.along, self.size):
            yield Tap(xp.asarray(tap.elements), xp.asarray(tap.weights), ())


def box_points(
    rois: Array, images: Array, data_shape: tuple[int, ...], attributes: Mapping[str, AttributeValue]
) -> Iterator[BoxPoints]:
    """All boxes, in groups of equal counts. Raises ValueError for a bad image or number, or one box of far too much."""
    batch, channels, *size = data_shape
    if images.size and (int(images.min()) < 0 or int(images.max()) >= batch):
        raise ValueError(f"batch_indices from {images.min()} to {images.max()} are outside [0, {batch})")
    if not np.isfinite(rois).all():
        raise ValueError("a box has a number that is not finite")
    bins = (as_int(attributes["output_height"]), as_int(attributes["output_width"]))
    start, length = _extents(rois.astype(np.float64), attributes)
    counts = _counts(length / bins, as_int(attributes["sampling_ratio"]))
    points = counts.prod(axis=1) * (bins[0] * bins[1])
    if points.size and points.max() > MOST_POINTS:
        raise ValueError(
            f"box {int(points.argmax())} has {int(points.max())} points to sample, more than {MOST_POINTS}"
        )
    for pair in np.unique(counts, axis=0).astype(int):
        same = np.flatnonzero((counts == pair).all(axis=1))
        step = max(1, BLOCK_ELEMENTS // max(1, int(pair.prod()) * bins[0] * bins[1] * channels))
        for first in range(0, len(same), step):
            chosen = same[first : first + step]
            extents = (start[chosen], length[chosen])
            yield _points(chosen, extents, images[chosen], bins=bins, counts=pair, size=(size[0], size[1]))


def weighed(xp: Any, rows: Array, group: BoxPoints) -> Iterator[tuple[Tap, Array]]:
    """Each tap, and its element times its weight for every point: (boxes, bins, points of a bin, channels)."""
    for tap in group.taps(xp):
        yield tap, (rows[tap.elements] * tap.weights.astype(rows.dtype)[:, None]).reshape(*group.shape, rows.shape[1])


def largest(xp: Any, rows: Array, group: BoxPoints) -> Array:
    """The largest of all weighed elements around the points of each bin: (boxes, bins, channels)."""
    best: Array | None = None
    for _, part in weighed(xp, rows, group):
        here = part.max(axis=2)
        best = here if best is None else xp.maximum(best, here)
    assert best is not None, "a point has four taps"
    return best


def _extents(rois: Array, attributes: Mapping[str, AttributeValue]) -> tuple[Array, Array]:
    """(beginnings, lengths), each (boxes, 2) with the height first, in elements of the input."""
    scale = as_float(attributes["spatial_scale"])
    is_shifted = attributes["coordinate_transformation_mode"] == "half_pixel"
    start, end = rois[:, 1::-1] * scale, rois[:, 3:1:-1] * scale
    length = end - start
    return (start - 0.5, length) if is_shifted else (start, np.maximum(length, 1))


def _counts(bin_length: Array, ratio: int) -> Array:
    """Points of a bin along both dimensions: as asked for, or as many as elements that the bin covers."""
    if ratio > 0:
        return np.full(bin_length.shape, float(ratio))
    return np.maximum(np.ceil(bin_length), 0)


def _points(
    boxes: Array,
    extents: tuple[Array, Array],
    images: Array,
    *,
    bins: tuple[int, int],
    counts: Array,
    size: tuple[int, int],
) -> BoxPoints:
    (start, length), (high, wide), (down, across) = extents, bins, counts
    shape = (len(boxes), high, wide, int(down), int(across))
    along = []
    for axis in (0, 1):
        bin_length = length[:, axis] / bins[axis]
        step = np.arange(bins[axis])[:, None] + (np.arange(counts[axis]) + 0.5) / max(int(counts[axis]), 1)
        places = start[:, axis, None, None] + step * bin_length[:, None, None]
        wide_places = places[:, :, None, :, None] if axis == 0 else places[:, None, :, None, :]
        along.append(_taps(np.broadcast_to(wide_places, shape).reshape(-1), size[axis]))
    points = int(down) * int(across)
    owner = np.repeat(images.astype(np.int64), high * wide * points)
    return BoxPoints(boxes, (len(boxes), high * wide, points), (along[0], along[1]), owner, size)


def _taps(places: Array, size: int) -> tuple[Tap, ...]:
    """The two elements beside each place: the edge's up to one beyond it, none farther out."""
    is_near = (places >= -1) & (places <= size)
    within = np.clip(places, 0, max(size - 1, 0))
    low = np.minimum(np.floor(within), max(size - 2, 0))
    share = within - low
    first = np.where(is_near & (size > 0), low, -1).astype(np.int64)
    second = np.where(is_near & (size > 1), low + 1, -1).astype(np.int64)
    return Tap(first, 1 - share, (share,)), Tap(second, share, (share,))
