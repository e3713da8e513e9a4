"""A worker's part in a benchmark, the same for every store: draw, meet, exchange against the clock, compare.

The parent writes lines to standard input, the worker answers on what was its standard output. Imported by both sides'
workers, so it needs nothing but NumPy and the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from store_cases import RATE, Case

Array = np.ndarray

MEET = "meet"
"""A worker says that it has reached the barrier, and hears when all have."""
END = "end"


@dataclass(frozen=True)
class Work:
    """A worker's gradients of a step: an array for each key, or rows (n, ...) of the table for `ids` (n), ascending."""

    gradients: list[Array]
    ids: Array | None = None


class Exchange(Protocol):
    """One store's way to exchange a step. Only `push_and_pull` runs against the clock."""

    def values(self, work: Work) -> list[Array]:
        """What the step's keys, or the rows of its ids, hold before it: arrays of the caller."""

    def prepare(self, work: Work) -> None:
        """Bring the gradients into the store's own form."""

    def push_and_pull(self, work: Work) -> None:
        """Return when all of the new values can be read."""

    def pulled(self) -> list[Array]:
        """The values of the last `push_and_pull`; ends what it left open."""

    def wire_bytes(self) -> int | None:
        """Bytes that this worker has sent and received until now, where the store counts them."""

    def close(self) -> None: ...


def arrays_in_one(shapes: Sequence[Sequence[int]]) -> list[Array]:
    """Arrays that lie one behind the other in one, as those of every side do: NumPy asks for huge pages for it, which
    arrays below 4 MiB do not get, and that takes a tenth of an exchange's time."""
    bounds = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)]).tolist()
    flat = np.zeros(bounds[-1], np.float32)
    return [flat[low:high].reshape(shape) for low, high, shape in zip(bounds, bounds[1:], shapes, strict=False)]


class Drawer:
    """Draws a slot's gradients; every process draws the same for the same slot and step."""

    def __init__(self, case: Case) -> None:
        self._case = case
        shapes = [(case.rows, *case.shapes[0][1:])] if case.rows else case.shapes
        self._arrays = arrays_in_one(shapes)

    def draw(self, slot: int, step: int) -> Work:
        """Uniform in [-0.5, 0.5); the arrays are written again by the next call."""
        generator = np.random.Generator(np.random.SFC64([slot, step]))
        ids = self._ids(generator) if self._case.rows else None
        for array in self._arrays:
            generator.random(out=array, dtype=np.float32)
            np.subtract(array, np.float32(0.5), out=array)
        return Work(self._arrays, ids)

    def _ids(self, generator: np.random.Generator) -> Array:
        """Distinct ones, ascending."""
        among, count = self._case.shapes[0][0], self._case.rows
        return np.sort(generator.choice(among, count, replace=False, shuffle=False))


def difference(before: list[Array], works: list[Work], own: int, after: list[Array]) -> float:
    """The largest difference between `after` and one step of descent from `before` on the works of all slots."""
    largest = 0.0
    for place, (old, new) in enumerate(zip(before, after, strict=True)):
        total = np.zeros(old.shape, np.float64)
        for work in works:
            if work.ids is None:
                total += work.gradients[place]
            else:
                _, mine, theirs = np.intersect1d(works[own].ids, work.ids, assume_unique=True, return_indices=True)
                total[mine] += work.gradients[place][theirs]
        apart = np.abs(old - RATE * total - new)
        largest = max(largest, float(np.max(apart, initial=0.0)) if np.isfinite(apart).all() else float("inf"))
    return largest


class Line:
    """Lines to and from the parent. Whatever else prints to standard output goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="ascii")
        os.dup2(2, 1)

    def say(self, **fields: Any) -> None:
        self._out.write(json.dumps(fields) + "\n")
        self._out.flush()

    def hear(self) -> dict[str, Any]:
        """The parent's next word; its end is ours."""
        text = sys.stdin.readline()
        return json.loads(text) if text else {"do": END}

    def meet(self) -> None:
        """Returns when every worker of the case is here."""
        self.say(do=MEET)
        if self.hear()["do"] != MEET:
            raise SystemExit("the parent has ended at a barrier")


def take_part(line: Line, exchange: Exchange, case: Case, slot: int, versions: dict[str, str]) -> None:
    """Carries out rounds until the parent says that it is the end."""
    line.say(do="ready", versions=versions)
    drawer, step = Drawer(case), 0
    while (word := line.hear())["do"] != END:
        spans: list[tuple[float, float]] = []
        apart, wire = 0.0, exchange.wire_bytes()
        count = word["warm_up"] + word["iterations"]
        for turn in range(count):
            work = drawer.draw(slot, step)
            # Two of a round's steps are compared: to do so at each would take longer than the exchange.
            compare = turn in (0, count - 1)
            before = exchange.values(work) if compare else []
            exchange.prepare(work)
            if case.workers > 1:  # One alone has nobody to wait for, and would only fall asleep.
                line.meet()
            start = time.monotonic()
            exchange.push_and_pull(work)
            spans.append((start, time.monotonic()))
            after = exchange.pulled()
            if compare:
                works = [work if other == slot else Drawer(case).draw(other, step) for other in range(case.workers)]
                apart = max(apart, difference(before, works, slot, after))
            step += 1
        line.say(do="done", spans=spans[word["warm_up"] :], apart=apart, wire=_wire(exchange, wire, count))
    exchange.close()


def _wire(exchange: Exchange, before: int | None, count: int) -> float | None:
    now = exchange.wire_bytes()
    return None if now is None or before is None else (now - before) / count


MARKS = ("first", "quarter", "half", "last")
"""Layers whose time is told: that the next forward pass can enter it, for all before it are there too."""


class LayerExchange(Protocol):
    """One store's way to exchange the layers of a step. Between `prepare` and `pulled` the clock runs."""

    def prepare(self, work: Work) -> None:
        """Bring the gradients into the store's own form."""

    def hand_over(self, places: Sequence[int]) -> None:
        """These layers' gradients exist, in this order: send them, and ask for new values where it is asked early."""

    def ask(self) -> None:
        """All was handed over: ask for what was not asked for yet."""

    def wait(self, place: int) -> None:
        """Return when the layer's new value can be read."""

    def pulled(self) -> list[Array]:
        """The new values; ends what was left open."""

    def expected(self, before: Array, gradient: Array) -> Array:
        """The new value of a layer, in NumPy."""

    def wire_bytes(self) -> int | None:
        """Bytes that this worker has sent and received until now, where the store counts them."""

    def close(self) -> None: ...


def mark_places(count: int) -> dict[str, int]:
    """The places of `MARKS` in a list of so many layers."""
    return dict(zip(MARKS, (0, count // 4, count // 2, count - 1), strict=True))


def take_marks(line: Line, exchange: LayerExchange, case: Case, versions: dict[str, str]) -> None:
    """Carries out rounds until the parent says that it is the end.

    A mark is in seconds from the first hand-over where all come at once, and from the last where they are staggered.
    """
    line.say(do="ready", versions=versions)
    drawer, step = Drawer(case), 0
    before = [np.ones(shape, np.float32) for shape in case.shapes]
    while (word := line.hear())["do"] != END:
        marks: list[dict[str, float]] = []
        apart, wire = 0.0, exchange.wire_bytes()
        count = word["warm_up"] + word["iterations"]
        for turn in range(count):
            work = drawer.draw(0, step)
            exchange.prepare(work)
            marks.append(one_step(exchange, case))
            after = exchange.pulled()
            # The first step is compared with the first values, the others with the step before them, once a round.
            if not step or turn == count - 1:
                apart = max(apart, _difference(exchange, before, work, after))
            before = [np.array(value) for value in after]
            step += 1
        now = exchange.wire_bytes()
        each = None if now is None or wire is None else (now - wire) / count
        line.say(do="done", marks=marks[word["warm_up"] :], apart=apart, wire=each)
    exchange.close()


def one_step(exchange: LayerExchange, case: Case) -> dict[str, float]:
    """Hands a step's gradients over and waits for the new values in the order of the forward pass."""
    count = len(case.shapes)
    places = {place: mark for mark, place in mark_places(count).items()}
    backward = range(count - 1, -1, -1)
    start = time.monotonic()
    if case.stagger_s:
        for turn, place in enumerate(backward):
            time.sleep(max(start + turn * case.stagger_s / count - time.monotonic(), 0.0))
            exchange.hand_over((place,))
        start = time.monotonic()
    else:
        exchange.hand_over(backward)
    exchange.ask()
    marks = {}
    for place in range(count):
        exchange.wait(place)
        if place in places:
            marks[places[place]] = time.monotonic() - start
    return marks


def _difference(exchange: LayerExchange, before: list[Array], work: Work, after: list[Array]) -> float:
    largest = 0.0
    for old, gradient, new in zip(before, work.gradients, after, strict=True):
        apart = np.abs(exchange.expected(old, gradient) - new)
        largest = max(largest, float(np.max(apart, initial=0.0)) if np.isfinite(apart).all() else float("inf"))
    return largest
