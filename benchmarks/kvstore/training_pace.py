"""A worker's steps as training paces them: forward through the layers as their values come, backward, hand over.

The computing is slept, so that nothing but the exchange is measured. Imported by the workers, so it needs nothing but
NumPy and the standard library.
"""

from __future__ import annotations

import time

import numpy as np

from exchange import END, Drawer, Line
from layer_marks import LayerExchange
from store_cases import Case

STEP = "step"
FORWARD_SHARE = 1 / 3
"""Of a step's computing: the backward pass makes two gradients for each product of the forward one."""


class Pace:
    """A processor that computes without a pause where nothing is waited for."""

    def __init__(self) -> None:
        self._free_at = time.monotonic()

    def compute(self, seconds: float) -> None:
        self._free_at = max(self._free_at, time.monotonic()) + seconds
        time.sleep(max(self._free_at - time.monotonic(), 0.0))


def take_steps(line: Line, exchange: LayerExchange, case: Case, versions: dict[str, str]) -> None:
    """Carries out rounds until the parent says that it is the end; tells how long each step took, in seconds."""
    line.say(do="ready", versions=versions)
    work = Drawer(case).draw(0, 0)
    before = [np.ones(shape, np.float32) for shape in case.shapes]
    while (word := line.hear())["do"] != END:
        count, wire = word["warm_up"] + word["iterations"], exchange.wire_bytes()
        marks, pace, begun = [], Pace(), time.monotonic()
        for turn in range(count):
            _forward(exchange, case, pace, fresh=not turn)
            exchange.prepare(work)
            _backward(exchange, case, pace)
            now = time.monotonic()
            marks.append({STEP: now - begun})
            begun = now
        apart = 0.0
        after = exchange.pulled()
        for old, gradient, new in zip(before, work.gradients, after, strict=True):
            wanted = old
            for _ in range(count):
                wanted = exchange.expected(wanted, gradient)
            apart = max(apart, float(np.max(np.abs(wanted - new), initial=0.0)))
        before = [np.array(value) for value in after]
        now_wire = exchange.wire_bytes()
        each = None if now_wire is None or wire is None else (now_wire - wire) / count
        line.say(do="done", marks=marks[word["warm_up"] :], apart=apart, wire=each)
    exchange.close()


def _forward(exchange: LayerExchange, case: Case, pace: Pace, *, fresh: bool) -> None:
    for place, seconds in enumerate(case.compute_s):
        if not fresh:  # A round's first step has its values.
            exchange.wait(place)
        pace.compute(seconds * FORWARD_SHARE)


def _backward(exchange: LayerExchange, case: Case, pace: Pace) -> None:
    for place in reversed(range(len(case.compute_s))):
        pace.compute(case.compute_s[place] * (1 - FORWARD_SHARE))
        exchange.hand_over((place,))
    exchange.ask()
