"""Whom a job's steps wait for: from when a step's gradients came, slot by slot. Pure.

Only where a step applies once all slots are in. A slot is in when it has sent the last of a step; of each step the slot
that came last is the one that the others waited for, since the first of them was in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

STEPS_KEPT: Final = 4
"""Steps that may be open at once: slots are no further apart."""


class Stragglers:
    """`waited[slot]`: seconds that steps waited for a slot which came last. `_came[step][slot]`: when it was last heard
    to send something of a step that is not judged."""

    def __init__(self, slots: Iterable[int]) -> None:
        self._slots = frozenset(slots)
        self.waited: dict[int, float] = {}
        self._came: dict[int, dict[int, float]] = {}
        self._judged = -1

    def came(self, slot: int, step: int, now: float) -> None:
        """Something of a step has come from a slot: it is not through with it before."""
        if step <= self._judged or slot not in self._slots:
            return
        at = self._came.get(step)
        if at is None:
            at = self._came[step] = {}
        at[slot] = now
        if step - 1 in self._came and len(at) == len(self._slots):
            self._judge(step - 1)
        while len(self._came) > STEPS_KEPT:
            self._judge(min(self._came))

    def waits(self, now: float) -> tuple[int, float] | None:
        """The slot most waited for so far, and the seconds; what is waited for just now counts. None: nobody was."""
        waited = dict(self.waited)
        for at in list(self._came.values()):
            here = dict(at)
            for slot in self._slots - here.keys() if here else ():
                waited[slot] = waited.get(slot, 0.0) + max(now - min(here.values()), 0.0)
        return max(((slot, seconds) for slot, seconds in waited.items()), key=lambda one: one[1], default=None)

    def _judge(self, step: int) -> None:
        for one in sorted(at for at in self._came if at <= step):
            at = self._came.pop(one)
            if len(at) > 1:
                last = max(at, key=at.__getitem__)
                self.waited[last] = self.waited.get(last, 0.0) + at[last] - min(at.values())
        self._judged = max(self._judged, step)
