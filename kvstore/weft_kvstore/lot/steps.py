"""Which steps of a lot's slices are in and merged, by slot: numbers alone, over any run of slices at once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.ranges import Range, ranges_where
from weft_kvstore.merging.steps import PushRefusedError, check_contributes, contradiction, numbers, waits
from weft_kvstore.settings import STEPS_AHEAD

NEVER: Final = -1

STEPS_SAID: Final = STEPS_AHEAD + 1
"""Steps of which a slot may be in while another is in none of them: so many are told apart by what was said of them."""


class LotSteps:
    """`came[p]`: how many steps of contributing slot number p are in, by slice, and `through[p]` how many are merged.
    `version` counts those that are merged of every slot and applied.

    A slot's steps are taken in one after the other: what comes early waits with whoever asks. Invariant: `version` <=
    `through` <= `came`, except that where slots go on by themselves `version` is the least of `through`.

    `_said[step % STEPS_SAID, p]` is twice the step that was taken in last, and one more where the slot had nothing.
    """

    __slots__ = ("_place", "_said", "_together", "came", "slots", "through", "version")

    def __init__(self, slots: tuple[int, ...], slices: int, *, together: bool) -> None:
        """`together`: no slot may be far ahead of the others, for a step applies once all are in."""
        self.slots = slots
        self._place = {slot: place for place, slot in enumerate(slots)}
        self._together = together
        self.came = np.zeros((len(slots), slices), np.int64)
        self.through = np.zeros((len(slots), slices), np.int64)
        self.version = np.zeros(slices, np.int64)
        self._said = np.full((STEPS_SAID, len(slots), slices), NEVER, np.int64)

    def place_of(self, slot: int, where: str) -> int:
        """The slot's number among those that contribute. Raises PushRefusedError."""
        check_contributes(slot, self.slots, where)
        return self._place[slot]

    def number_of(self, slot: int) -> int | None:
        """The slot's number among those that contribute, if it does."""
        return self._place.get(slot)

    def check(self, place: int, step: int, first: int, stop: int, *, pushes: bool, where: Callable[[int], str]) -> None:
        """Raises PushRefusedError where gradients of a slot, or its word that it has none, contradict what is there.
        `where` gives the words for a slice."""
        came = self.came[place, first:stop]
        if step < int(came.max()):
            said = self._said[step % STEPS_SAID, place, first:stop]
            wrong = (said == _word(step, pushes=not pushes)) & self._open(place, step, first, stop)
            if wrong.any():
                told = contradiction(before=not pushes)
                raise PushRefusedError(f"{where(first + int(wrong.argmax()))}: {told}")
        least = self.came[:, first:stop].min(axis=0) if self._together else came
        if step > int(least.min()) + STEPS_AHEAD:
            at = first + int(least.argmin())
            behind = int(self.came[:, at].min()) if self._together else int(came.min())
            missing = [slot for slot, there in zip(self.slots, self.came[:, at], strict=True) if there <= behind]
            of = missing if self._together else [self.slots[place]]
            raise PushRefusedError(
                f"{where(at)}: more than {STEPS_AHEAD} steps ahead of step {behind}, which waits for slots {of}"
            )

    def accept(self, place: int, step: int, first: int, stop: int, *, pushes: bool) -> tuple[list[Range], list[Range]]:
        """Takes in what `check` lets pass: the ranges that are new, and those that come too early to be taken in."""
        came = self.came[place, first:stop]
        new = came == step
        if new.all():
            taken, early = [(first, stop)], []
        else:
            taken, early = ranges_where(new, first), ranges_where(came < step, first)
        for low, high in taken:
            self.came[place, low:high] = step + 1
            self._said[step % STEPS_SAID, place, low:high] = _word(step, pushes=pushes)
        return taken, early

    def forget(self, place: int) -> None:
        """What of a slot is not merged never came."""
        self.came[place] = self.through[place]
        said = self._said[:, place]
        said[said >= _word(self.through[place], pushes=True)] = NEVER

    def missing_in(self, slice_: int, step: int) -> list[int]:
        """The slots that are not in with a step of a slice."""
        return [slot for slot, came in zip(self.slots, self.came[:, slice_].tolist(), strict=True) if came <= step]

    def missing(self, slice_: int, version: int, of: Sequence[int] | None) -> tuple[str, list[int]]:
        """What a pull of a version waits for at a slice, in words, and the slots that are missing; `of`: the numbers of
        the slots whose own steps count, None for all of them together."""
        if of is None:
            at = int(self.version[slice_])
            missing = self.missing_in(slice_, at)
            return f"has seen {at} steps; {waits(at, missing)}", missing
        behind = {self.slots[p]: int(self.came[p, slice_]) for p in of if self.through[p, slice_] < version}
        first = min(behind.values(), default=version)
        missing = [slot for slot, step in behind.items() if step == first and step < version]
        return (
            f"has seen {first} steps of slots {numbers([self.slots[p] for p in of])}; {waits(first, missing)}",
            missing,
        )

    def _open(self, place: int, step: int, first: int, stop: int) -> Array:
        """At which slices a step is not applied, so that what is said of it still counts."""
        done = self.version if self._together else self.through[place]
        found: Array = done[first:stop] <= step
        return found


def _word(step: int | Array, *, pushes: bool) -> Any:
    """What a slot says of a step, as a number; those of later steps are larger."""
    return 2 * step + int(not pushes)
