"""A worker's part on a slow link: gradients handed over last layer first, and when each layer's new value is there.

Imported by both sides' workers, so it needs nothing but NumPy and the standard library.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from exchange import END, Array, Drawer, Line, Work
from store_cases import Case

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
