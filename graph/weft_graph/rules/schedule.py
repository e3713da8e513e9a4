"""Hyper-parameters that change with the step: closed forms, as documents that every process evaluates alike.

| `schedule` | fields | at step n, counted from the end of the warm-up |
|---|---|---|
| constant | value | value |
| linear | start, end, steps, begin | start + (end - start) * t |
| cosine | start, end, steps, begin | end + (start - end) * (1 + cos(pi * t)) / 2 |
| polynomial | start, end, steps, power, begin | end + (start - end) * (1 - t) ** power |
| exponential | start, factor, steps, end, staircase, begin | start * factor ** (m / steps), and never beyond `end` |
| piecewise | start, boundaries [{step, factor}] | start times the factors of all boundaries up to n |

m = max(n - begin, 0), t = min(m / steps, 1); `staircase` cuts m / steps to a whole number. The forms are those of
optax's schedules of the same names. Any of them may have `warmup` {steps, start}: a straight line from `start` to the
value at step 0 of the form, which begins after it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from weft_graph.errors import GraphFormatError
from weft_graph.json_place import Place
from weft_graph.rules.portable_math import half_cosine, power

MOST_STEPS: Final = 1 << 53
MOST_BOUNDARIES: Final = 64


class Curve(Protocol):
    """A schedule without its warm-up."""

    def at(self, step: int) -> float:
        """The value at a step from 0."""

    def ends(self) -> tuple[float, ...]:
        """Numbers between which the values of all steps are, infinite where they have no bound."""


@dataclass(frozen=True, slots=True)
class ConstantValue:
    """One number for all steps. `ir.Constant` is a value of a graph."""

    value: float

    def at(self, _step: int) -> float:
        return self.value

    def ends(self) -> tuple[float, ...]:
        return (self.value,)


@dataclass(frozen=True, slots=True)
class Polynomial:
    """From `start` to `end` within `steps`; linear where `power` is 1."""

    start: float
    end: float
    steps: int
    power: float
    begin: int

    def at(self, step: int) -> float:
        left = 1.0 - _share(step - self.begin, self.steps)
        return _between(self.start, self.end, left if self.power == 1 else power(left, self.power))

    def ends(self) -> tuple[float, ...]:
        return (self.start, self.end)


@dataclass(frozen=True, slots=True)
class Cosine:
    """From `start` to `end` within `steps`, along half a wave."""

    start: float
    end: float
    steps: int
    begin: int

    def at(self, step: int) -> float:
        return _between(self.start, self.end, half_cosine(_share(step - self.begin, self.steps)))

    def ends(self) -> tuple[float, ...]:
        return (self.start, self.end)


@dataclass(frozen=True, slots=True)
class Exponential:
    """`factor` times as much after every `steps`, down or up to `end` where there is one. No number is negative."""

    start: float
    factor: float
    steps: int
    end: float | None
    staircase: bool
    begin: int

    def at(self, step: int) -> float:
        since = max(step - self.begin, 0)
        value = self.start * power(self.factor, since // self.steps if self.staircase else since / self.steps)
        if self.end is None:
            return value
        return max(value, self.end) if self.factor < 1 else min(value, self.end)

    def ends(self) -> tuple[float, ...]:
        if self.end is not None:
            return (self.start, self.end)
        if self.factor == 1 or self.start == 0:
            return (self.start,)
        return (self.start, 0.0 if self.factor < 1 else math.inf)


@dataclass(frozen=True, slots=True)
class Piecewise:
    """`start` until the first boundary, then times its factor, and so on. Steps ascend."""

    start: float
    boundaries: tuple[tuple[int, float], ...]

    def at(self, step: int) -> float:
        value = self.start
        for boundary, factor in self.boundaries:
            if boundary > step:
                break
            value *= factor
        return value

    def ends(self) -> tuple[float, ...]:
        return (self.start, *(self.at(boundary) for boundary, _ in self.boundaries))


@dataclass(frozen=True, slots=True)
class Schedule:
    """A curve, and `warmup_steps` steps before it on a line from `warmup_start` to the curve's first value."""

    curve: Curve
    warmup_steps: int = 0
    warmup_start: float = 0.0

    def at(self, step: int) -> float:
        """The value for the update of step `step`, counted from 0."""
        if step >= self.warmup_steps:
            return self.curve.at(step - self.warmup_steps)
        return _between(self.warmup_start, self.curve.at(0), 1.0 - step / self.warmup_steps)

    def bounds(self) -> tuple[float, float]:
        """Smallest and largest of what it ever is or comes near to; infinite where it grows without end."""
        ends = self.curve.ends() + ((self.warmup_start,) if self.warmup_steps else ())
        return min(ends), max(ends)


Hyper: TypeAlias = float | Schedule
HyperValue: TypeAlias = float | Schedule | Mapping[str, Any]
"""A number, a schedule, or a schedule's document."""


def value_at(hyper: HyperValue, step: int) -> float:
    """The number that holds for the update of step `step`, counted from 0: the same bits in every process.

    A document is read each time: who asks often reads it once, with `hyper_from_json`. Raises ValueError for one that
    is none, naming the field.
    """
    if isinstance(hyper, Mapping):
        try:
            hyper = schedule_from_json(hyper)
        except GraphFormatError as error:
            raise ValueError(f"schedule: {error}") from None
    return hyper.at(step) if isinstance(hyper, Schedule) else float(hyper)


def hyper_from_json(document: object, pointer: str = "") -> Hyper:
    """Reads a number or a schedule's document. Raises GraphFormatError, whose pointer begins with `pointer`."""
    return schedule_from_json(document, pointer) if isinstance(document, Mapping) else Place(document, pointer).number()


def schedule_from_json(document: object, pointer: str = "") -> Schedule:
    """Reads a schedule's document. Raises GraphFormatError, whose pointer begins with `pointer`."""
    place = Place(document, pointer)
    if not isinstance(document, Mapping):
        raise place.expected("a schedule")
    if "schedule" not in document:
        raise place.error(f"field 'schedule' is missing: one of {', '.join(_READERS)}")
    kind = document.get("schedule")
    if not isinstance(kind, str) or kind not in _READERS:
        raise Place(kind, f"{pointer}/schedule").expected(f"one of {', '.join(_READERS)}")
    required, optional, read = _READERS[kind]
    fields = place.fields(("schedule", *required), (*optional, "warmup"))
    curve = read(fields)
    if any(math.isnan(end) for end in curve.ends()) or not math.isfinite(curve.at(0)):
        raise place.error("its numbers multiply to what is no finite number")
    if "warmup" not in fields:
        return Schedule(curve)
    warmup = fields["warmup"].fields(("steps",), ("start",))
    return Schedule(curve, warmup["steps"].integer(1, MOST_STEPS), _number(warmup, "start", 0.0))


def _between(start: float, end: float, left: float) -> float:
    """`start` where all is left, `end` where nothing is; meets both exactly and cannot overflow between them."""
    return start * left + end * (1.0 - left)


def _share(steps: int, of: int) -> float:
    return min(max(steps, 0) / of, 1.0)


def _number(fields: Mapping[str, Place], name: str, default: float) -> float:
    return fields[name].number() if name in fields else default


def _steps(fields: Mapping[str, Place]) -> int:
    return fields["steps"].integer(1, MOST_STEPS)


def _begin(fields: Mapping[str, Place]) -> int:
    return fields["begin"].integer(0, MOST_STEPS) if "begin" in fields else 0


def _constant(fields: Mapping[str, Place]) -> Curve:
    return ConstantValue(fields["value"].number())


def _linear(fields: Mapping[str, Place]) -> Curve:
    return Polynomial(fields["start"].number(), _number(fields, "end", 0.0), _steps(fields), 1.0, _begin(fields))


def _cosine(fields: Mapping[str, Place]) -> Curve:
    return Cosine(fields["start"].number(), _number(fields, "end", 0.0), _steps(fields), _begin(fields))


def _polynomial(fields: Mapping[str, Place]) -> Curve:
    start, end = fields["start"].number(), _number(fields, "end", 0.0)
    return Polynomial(start, end, _steps(fields), _positive(fields["power"]), _begin(fields))


def _exponential(fields: Mapping[str, Place]) -> Curve:
    start, factor = fields["start"].number(), _positive(fields["factor"])
    if start < 0:
        raise fields["start"].expected("a number from 0")
    end = fields["end"].number() if "end" in fields and fields["end"].value is not None else None
    if end is not None and (end > start if factor < 1 else end < start):
        raise fields["end"].error(f"times {factor} leads from {start} away from {end}")
    staircase = fields["staircase"].boolean() if "staircase" in fields else False
    return Exponential(start, factor, _steps(fields), end, staircase, _begin(fields))


def _piecewise(fields: Mapping[str, Place]) -> Curve:
    boundaries: list[tuple[int, float]] = []
    for place in fields["boundaries"].items(MOST_BOUNDARIES):
        item = place.fields(("step", "factor"))
        step = item["step"].integer(1, MOST_STEPS)
        if boundaries and step <= boundaries[-1][0]:
            raise item["step"].error(f"step {step} does not come after step {boundaries[-1][0]}")
        boundaries.append((step, item["factor"].number()))
    return Piecewise(fields["start"].number(), tuple(boundaries))


def _positive(place: Place) -> float:
    number = place.number()
    if number <= 0:
        raise place.expected("a number above 0")
    return number


_TRANSITION: Final = ("end", "begin")

_READERS: Final = {
    "constant": (("value",), (), _constant),
    "linear": (("start", "steps"), _TRANSITION, _linear),
    "cosine": (("start", "steps"), _TRANSITION, _cosine),
    "polynomial": (("start", "steps", "power"), _TRANSITION, _polynomial),
    "exponential": (("start", "factor", "steps"), (*_TRANSITION, "staircase"), _exponential),
    "piecewise": (("start", "boundaries"), (), _piecewise),
}
"""Of each kind: fields that are there, fields that may be, and how the curve is read."""
