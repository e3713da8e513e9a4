"""A plot of lines over two logarithmic axes, as an SVG. Pure: the same points give the same text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 120, 34, 44
COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777", "#000000", "#994f00")
"""Told apart by those who do not see all colors: Paul Tol's bright scheme, and two beside it."""
FONT = "font-family='sans-serif' font-size='12'"

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """Points joined in their order."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis. `ticks` are the numbers that it names."""

    name: str
    ticks: Sequence[float]


def plot(title: str, across: Axis, up: Axis, lines: Sequence[Line]) -> str:
    """The document. Raises ValueError for a number that has no logarithm."""
    points = [point for line in lines for point in line.points]
    if not points or min(min(point) for point in points) <= 0:
        raise ValueError(f"{title}: every number of a logarithmic plot is above 0, and there is one")
    place = _Place((*across.ticks, *(x for x, _ in points)), (*up.ticks, *(y for _, y in points)))
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' {FONT}>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>",
        f"<text x='{LEFT}' y='20' font-weight='bold'>{escape(title)}</text>",
        *_grid(across, up, place),
    ]
    for number, line in enumerate(lines):
        parts += _line(line, COLORS[number % len(COLORS)], number, place)
    return "\n".join([*parts, "</svg>", ""])


class _Place:
    """Where a number lies on the paper."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self._left, self._right = math.log(min(xs)), math.log(max(xs))
        self._low, self._high = math.log(min(ys)), math.log(max(ys))

    def x(self, value: float) -> float:
        share = (math.log(value) - self._left) / (self._right - self._left or 1.0)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (math.log(value) - self._low) / (self._high - self._low or 1.0)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _grid(across: Axis, up: Axis, place: _Place) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for tick in across.ticks:
        x = place.x(tick)
        parts.append(f"<path d='M{x:.1f} {TOP}V{bottom}' stroke='#dddddd'/>")
        parts.append(f"<text x='{x:.1f}' y='{bottom + 16}' text-anchor='middle'>{tick:,.10g}</text>")
    for tick in up.ticks:
        y = place.y(tick)
        parts.append(f"<path d='M{LEFT} {y:.1f}H{right}' stroke='#dddddd'/>")
        parts.append(f"<text x='{LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>{tick:,.10g}</text>")
    middle = (LEFT + right) / 2
    parts.append(f"<text x='{middle:.1f}' y='{HEIGHT - 8}' text-anchor='middle'>{escape(across.name)}</text>")
    y = (TOP + bottom) / 2
    turned = f"transform='rotate(-90 14 {y:.1f})'"
    parts.append(f"<text x='14' y='{y:.1f}' text-anchor='middle' {turned}>{escape(up.name)}</text>")
    return parts


def _line(line: Line, color: str, number: int, place: _Place) -> list[str]:
    path = " ".join(f"{place.x(x):.1f},{place.y(y):.1f}" for x, y in line.points)
    y = TOP + 10 + 18 * number
    x = WIDTH - RIGHT + 12
    return [
        f"<polyline points='{path}' fill='none' stroke='{color}' stroke-width='2'/>",
        f"<path d='M{x} {y - 4}h18' stroke='{color}' stroke-width='2'/>",
        f"<text x='{x + 24}' y='{y}'>{escape(line.name)}</text>",
    ]
