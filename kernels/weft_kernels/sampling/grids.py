"""Where GridSample reads: coordinates from -1 to 1 as places among elements, and what is beyond the edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array
from weft_kernels.sampling.cubic import cubic_slope, cubic_weight
from weft_kernels.sampling.taps import Tap, combined, inside, linear_taps

CUBIC_A: Final = -0.75


def grid_taps(xp: Any, grid: Array, shape: Sequence[int], attributes: Mapping[str, AttributeValue]) -> Iterator[Tap]:
    """The taps of every place of `grid` (images, places ..., dimensions) in inputs of spatial `shape`."""
    coordinates = grid.astype(statistics_dtype(xp, grid), copy=False).reshape(-1, len(shape))
    aligned = bool(as_int(attributes["align_corners"]))
    # The grid has the last dimension's coordinate first.
    along = [
        _taps(xp, coordinates[:, len(shape) - 1 - axis], size, attributes, aligned=aligned)
        for axis, size in enumerate(shape)
    ]
    images = xp.repeat(xp.arange(grid.shape[0]), coordinates.shape[0] // max(grid.shape[0], 1))
    return combined(images, along, shape)


def _taps(
    xp: Any, coordinate: Array, size: int, attributes: Mapping[str, AttributeValue], *, aligned: bool
) -> tuple[Tap, ...]:
    """Along one dimension; slopes are those by the coordinate."""
    scale = (size - 1) / 2 if aligned else size / 2
    places = (coordinate + 1) * scale - (0 if aligned else 0.5)
    mode, padding = str(attributes["mode"]), str(attributes["padding_mode"])
    bounds = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
    if mode in {"cubic", "bicubic"}:
        return tuple(_cubic_taps(xp, places, size, padding, bounds=bounds, scale=scale))
    places, slope = _padded(xp, places, size, padding, bounds)
    slope = slope * scale
    if mode == "nearest":
        one = xp.ones_like(places)
        return (Tap(inside(xp, xp.rint(places), size), one, (one * 0,)),)
    return tuple(Tap(tap.elements, tap.weights, (tap.slopes[0] * slope,)) for tap in linear_taps(xp, places, size))


def _cubic_taps(
    xp: Any, places: Array, size: int, padding: str, *, bounds: tuple[float, float], scale: float
) -> Iterator[Tap]:
    """Four elements; one beyond the edge is another, or none, while its weight stays."""
    first = xp.floor(places) - 1
    for step in range(4):
        element = first + step
        distance = places - element
        real, _ = _padded(xp, element, size, padding, bounds)
        weight, slope = cubic_weight(xp, distance, CUBIC_A), cubic_slope(xp, distance, CUBIC_A)
        yield Tap(inside(xp, xp.rint(real), size), weight, (slope * scale,))


def _padded(xp: Any, places: Array, size: int, padding: str, bounds: tuple[float, float]) -> tuple[Array, Array]:
    """(places once those beyond the edges are moved, their slope by the places that were asked for)."""
    slope = xp.ones_like(places)
    if padding == "zeros":
        return places, slope
    if padding == "reflection":
        places, slope = _reflected(xp, places, *bounds)
    is_within = (places > 0) & (places < size - 1)
    return xp.clip(places, 0, max(size - 1, 0)), slope * is_within


def _reflected(xp: Any, places: Array, low: float, high: float) -> tuple[Array, Array]:
    """Thrown back at `low` and `high` as often as it takes, and whether that turned the direction: 1 or -1."""
    span = high - low
    if span <= 0:
        return places * 0, places * 0
    beyond = places - low
    turns = xp.floor(beyond / span)
    rest = beyond - turns * span
    is_odd = xp.remainder(turns, 2) == 1
    return low + xp.where(is_odd, span - rest, rest), 1 - 2 * is_odd.astype(places.dtype)
