"""How steps are merged and applied, and which are, by slot and slice. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from weft_graph.program import Update
from weft_kernels.rules.record import Rule
from weft_kernels.run import KernelError
from weft_kvstore.arrays import Range, ranges_where
from weft_kvstore.bucket.gate import StepGate
from weft_kvstore.description.records import Merge, Mode
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.hyper import KeyHyper
from weft_kvstore.settings import STEPS_AHEAD

# --- How a bucket or a table is merged and updated --------------------------------------------------------------------


RULE_ERRORS: Final = (ArithmeticError, ValueError, MemoryError, KernelError)
"""What a rule or a schedule may raise on the numbers that it meets. Anything else is a fault of the store."""


class RuleFailedError(Exception):
    """A rule cannot make an update: the job ends, not the shard. The text names the rule, key, slice and step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSpec:
    """Of bucket `number`, whether its keys are dense or a table. `piece_elements`: elements that the rule updates at
    once. `gate`: what holds each step until the slots have agreed on it, where they do."""

    number: int
    slots: tuple[int, ...]
    update: Update
    merge: Merge
    mode: Mode
    staleness: int
    rule: Rule
    hyper: KeyHyper
    piece_elements: int
    gate: StepGate | None
    is_sync: bool = field(init=False)
    """Whether a step applies once all slots are in, not each slot's by itself."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_sync", self.mode is Mode.SYNC)

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the state arrays."""
        return tuple(self.rule.state) if self.update is Update.RULE else ()

    @property
    def is_ruled(self) -> bool:
        """Whether a rule ever updates it."""
        return self.update is Update.RULE and bool(self.slots)

    @property
    def holds_at_once(self) -> bool:
        """Whether a value that is set waits for no step: slots go on by themselves, or nobody contributes."""
        return not self.is_sync or not self.slots

    def key_named(self, slice_: int) -> str:
        """The words by which an error names the key of a slice."""
        raise NotImplementedError

    def named(self, slice_: int) -> str:
        """The words by which an error names a slice."""
        return self.key_named(slice_)

    def failed(self, step: int, error: Exception, first: int = 0, last: int = 0) -> RuleFailedError:
        """What to raise where the rule has failed on slices that were computed at once."""
        where = self.named(first) if last == first else f"{self.named(first)} to {self.named(last)}"
        detail = str(error) or type(error).__name__  # A MemoryError has no words.
        return RuleFailedError(f"rule {self.rule.name!r} failed on {where}, step {step}: {detail}")


# --- Which steps are in: numbers alone, over any range of slices at once ----------------------------------------------


def contradiction(*, before: bool) -> str:
    """In words: a slot has pushed and declares nothing, or the other way round."""
    was, now = ("pushed", "declares nothing") if before else ("declared nothing", "pushes")
    return f"the slot {was} before and {now} now"


class BucketSteps:
    """`arrived[i]`: how many steps have arrived from contributing slot number i, by slice, and `through[i]` how many of
    them are added up. `version` counts those that are added up of every slot and applied.

    A slot's steps are taken in one after the other: what comes early waits with whoever asks. Invariant: `version` <=
    `through` <= `arrived`, except that where slots go on by themselves `version` is the least of `through`.

    `indices` has the number of each slot that contributes. `pushed[i]`: whether the slot had gradients of the last step
    that is added up of it and not applied.
    """

    __slots__ = ("_is_sync", "arrived", "base", "indices", "pushed", "slots", "through", "version")

    def __init__(self, slots: tuple[int, ...], slices: int, *, is_sync: bool) -> None:
        """`is_sync`: no slot may be far ahead of the others, for a step applies once all are in."""
        self.slots = slots
        self.indices = {slot: index for index, slot in enumerate(slots)}
        self._is_sync = is_sync
        self.arrived = np.zeros((len(slots), slices), np.int64)
        self.through = np.zeros((len(slots), slices), np.int64)
        self.pushed = np.zeros((len(slots), slices), np.bool_)
        self.version = np.zeros(slices, np.int64)
        self.base = np.zeros(slices, np.int64)
        """The version with which a slice began."""

    def index_of(self, slot: int, where: str) -> int:
        """The slot's number among those that contribute. Raises PushRefusedError."""
        if slot not in self.indices:
            raise PushRefusedError(f"{where}: only slots {list(self.slots)} contribute to it")
        return self.indices[slot]

    def check(self, index: int, step: int, first: int, stop: int, *, pushes: bool, where: Callable[[int], str]) -> None:
        """Raises PushRefusedError where gradients of a slot, or its word that it has none, are too far ahead, or
        contradict what is merged of a step that is not applied. `where` gives the words for a slice."""
        arrived = self.arrived[index, first:stop]
        if self._is_sync and step < arrived.max():
            open_ = (self.version[first:stop] == step) & (self.through[index, first:stop] == step + 1)
            wrong = open_ & (self.pushed[index, first:stop] != pushes)
            if wrong.any():
                raise PushRefusedError(f"{where(first + int(wrong.argmax()))}: {contradiction(before=not pushes)}")
        those = self.arrived[:, first:stop] if self._is_sync else arrived
        if step > those.min() + STEPS_AHEAD:
            at = first + int((those.min(axis=0) if self._is_sync else arrived).argmin())
            behind = int(self.arrived[:, at].min()) if self._is_sync else int(arrived.min())
            missing = [slot for slot, there in zip(self.slots, self.arrived[:, at], strict=True) if there <= behind]
            of = missing if self._is_sync else [self.slots[index]]
            raise PushRefusedError(
                f"{where(at)}: more than {STEPS_AHEAD} steps ahead of step {behind}, which waits for slots {of}"
            )

    def accept(self, index: int, step: int, first: int, stop: int) -> tuple[list[Range], list[Range]]:
        """Takes in what `check` lets pass: the ranges that are new, and those that come too early."""
        arrived = self.arrived[index, first:stop]
        accepted, early = ranges_where(arrived == step, first), ranges_where(arrived < step, first)
        for low, high in accepted:
            self.arrived[index, low:high] = step + 1
        return accepted, early

    def begin_at(self, version: int, first: int, stop: int) -> None:
        """Untouched slices begin at a version."""
        for counts in (self.arrived, self.through, self.version, self.base):
            counts[..., first:stop] = version

    def forget(self, index: int) -> None:
        """What of a slot is not merged never came."""
        self.arrived[index] = self.through[index]

    def missing_in(self, slice_: int, step: int) -> list[int]:
        """The slots that are not in with a step of a slice."""
        return [
            slot for slot, arrived in zip(self.slots, self.arrived[:, slice_].tolist(), strict=True) if arrived <= step
        ]

    def missing(self, slice_: int, version: int, of: Sequence[int] | None) -> tuple[str, list[int]]:
        """What a pull of a version waits for at a slice, in words, and the slots that are missing; `of`: the numbers of
        the slots whose own steps count, None for all of them together."""
        if of is None:
            at = int(self.version[slice_])
            missing = self.missing_in(slice_, at)
            return f"has seen {at} steps; {_waits_for(at, missing)}", missing
        behind = {self.slots[p]: int(self.arrived[p, slice_]) for p in of if self.through[p, slice_] < version}
        first = min(behind.values(), default=version)
        missing = [slot for slot, step in behind.items() if step == first and step < version]
        slots = missing or [self.slots[p] for p in of]
        return f"has seen {first} steps of slots {listed(slots)}; {_waits_for(first, missing)}", missing


def _waits_for(step: int, missing: list[int]) -> str:
    return f"step {step} waits for slots {listed(missing)}" if missing else f"step {step} is being merged"


def listed(slots: list[int]) -> str:
    return ", ".join(map(str, slots))
