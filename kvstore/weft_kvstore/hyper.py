"""Hyper-parameters of keys by step: ranges, changes while a job runs, and how shards agree on these. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple

from weft_graph.rules.schedule import Schedule, schedule_from_json
from weft_kernels.rules.record import Hyper
from weft_kvstore.description.check import is_ruled, largest_finite, overflow_text, rule_of
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.wire.messages import MAX_NUMBERS

# --- Which numbers a hyper-parameter may be given: such as are finite in the type of every key that they are for ------


def checked_numbers(
    description: StoreDescription, key: KeyDescription | None, numbers: Mapping[str, object]
) -> dict[str, float]:
    """The numbers that a caller gives to one key, or with None to all. Raises ValueError, which says why they cannot be
    given."""
    if not any(is_ruled(one) for one in ([key] if key is not None else description.keys)):
        raise ValueError("the shards update it by no rule")
    rule = rule_of(description, key)
    if not 1 <= len(numbers) <= MAX_NUMBERS:
        raise ValueError(f"{len(numbers)} numbers; a call changes 1 to {MAX_NUMBERS}")
    found: dict[str, float] = {}
    for name, value in numbers.items():
        if name not in rule.hyper:
            raise ValueError(f"rule {rule.name!r} has no {name!r}; it has {', '.join(sorted(rule.hyper)) or 'none'}")
        found[name] = _finite(name, value)
        check_range(name, found[name], range_of(description, key, name))
    return found


class Least(NamedTuple):
    """The largest magnitude that a number may have, and the key by which it has none larger."""

    most: float
    key: KeyDescription | None


def range_of(description: StoreDescription, key: KeyDescription | None, name: str) -> Least:
    """Of a number that is given to one key, or with None to all that have it from the job; multiplied, it has to be
    finite in each key's own type, which the rule computes in."""
    if key is not None:
        return _range_of_one(key, name)
    found = [
        _range_of_one(one, name)
        for one in description.keys
        if is_ruled(one) and one.rule is None and name not in (one.hyper or ())
    ]
    return min(found, default=Least(math.inf, None), key=lambda one: one.most)


def check_range(name: str, value: float, range_: Least) -> None:
    """Raises ValueError, which names the key, for a number beyond it."""
    if abs(value) > range_.most:
        assert range_.key is not None
        raise ValueError(overflow_text(range_.key, name, value))


def _finite(name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]  # what is no number is the caller's to hear of
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise ValueError(f"{name!r}: a finite number, not {value!r}")
    return number


def _range_of_one(key: KeyDescription, name: str) -> Least:
    return Least(largest_finite(key, name), key)


# --- Hyper-parameters that were changed while a job runs, each from a step on -----------------------------------------


class HyperTimeline:
    """`count` grows with each change, and `known_from` is the first step of which it has not forgotten anything. Of
    changes from the same step the later one holds. May be read on any thread while one other changes it: `_changes`,
    steps in order with what changes there, is never written, but another takes its place."""

    __slots__ = ("_changes", "count", "known_from")

    def __init__(self) -> None:
        self.count = 0
        self.known_from = 0
        self._changes: tuple[tuple[int, Mapping[str, float]], ...] = ()

    def __len__(self) -> int:
        """How many changes it keeps."""
        return len(self._changes)

    def set(self, step: int, numbers: Mapping[str, float]) -> None:
        """These hold from `step` on, until a change from a later step."""
        now = self._changes
        index = bisect_right(now, step, key=itemgetter(0))
        self._changes = (*now[:index], (step, dict(numbers)), *now[index:])
        self.count += 1

    def at(self, step: int) -> Mapping[str, float]:
        """What was changed and holds at a step."""
        found: dict[str, float] = {}
        for first, numbers in self._changes:
            if first > step:
                break
            found |= numbers
        return found

    def forget(self, before: int) -> None:
        """No step before this one is asked for any more: what only those need is dropped."""
        now = self._changes
        index = bisect_right(now, before, key=itemgetter(0))
        if index > 1:
            self.known_from = now[index - 1][0]
            self._changes = ((self.known_from, self.at(before)), *now[index:])

    def keep(self, most: int) -> None:
        """Forgets the earliest changes beyond so many."""
        if len(self._changes) > most:
            self.forget(self._changes[-most][0])


# --- A key's hyper-parameters: the job's numbers and schedules, what was changed since, and the key's multipliers -----


class KeyHyper:
    """`at(step)` gives the numbers for the update of that step, counted from 0.

    Numbers that never change are made once; else the last step is kept, since all slices of a key ask for it. A changed
    number takes the place of the schedule from there on. What was changed for this key alone is in `own`, and stands
    before what was changed for the whole job.
    """

    __slots__ = ("_base", "_described", "_job", "_last", "_multipliers", "_schedules", "_when", "constant", "own")

    def __init__(
        self,
        values: Mapping[str, float | Mapping[str, Any]],
        multipliers: Mapping[str, float],
        *,
        job: HyperTimeline | None = None,
        described: Collection[str] = (),
        own: HyperTimeline | None = None,
    ) -> None:
        """`job` has what is changed for the whole job, but for the numbers `described`, which the key has for itself.

        Raises GraphFormatError for a schedule that there is not.
        """
        self.own = HyperTimeline() if own is None else own
        self._job = HyperTimeline() if job is None else job
        self._described = frozenset(described)
        self._multipliers = dict(multipliers)
        self._schedules: dict[str, Schedule] = {
            name: schedule_from_json(value) for name, value in values.items() if isinstance(value, Mapping)
        }
        numbers = {name: float(value) for name, value in values.items() if not isinstance(value, Mapping)}
        self._base: Hyper = {name: value * self._factor(name) for name, value in numbers.items()}
        self._last: Hyper = self._base
        self._when = (-1, 0)
        self.constant: Hyper | None = None if self._schedules or self._job.count or self.own.count else self._base
        """The numbers of every step, where no schedule and no change tells steps apart: see `changed`."""

    def changed(self) -> None:
        """Something was changed, of this key or of the job: who made the change says so."""
        if self._job.count or self.own.count:
            self.constant = None

    def at(self, step: int) -> Hyper:
        changes = self._job.count + self.own.count
        if not changes and not self._schedules:
            return self._base
        if self._when != (step, changes):
            now = {name: schedule.at(step) for name, schedule in self._schedules.items()}
            now |= {name: value for name, value in self._job.at(step).items() if name not in self._described}
            now |= self.own.at(step)
            self._last = {**self._base, **{name: value * self._factor(name) for name, value in now.items()}}
            self._when = (step, changes)
        return self._last

    def _factor(self, name: str) -> float:
        return self._multipliers.get(name, 1.0)


# --- A change that shards agree on: see `shard.live_hyper` ------------------------------------------------------------


MOST_AHEAD: Final = 1 << 24
"""Steps from the first that nobody has begun to the first that a change is for: no job has so many to go."""

MOST_WAITING: Final = 1024
"""Changes of the job, or of a key, that are kept for steps that are not applied."""


class ChangeRefusedError(Exception):
    """A change that cannot be made. `step` is the first from which it can be; the one asked for where that is not
    what stands in the way."""

    def __init__(self, reason: str, step: int) -> None:
        super().__init__(reason)
        self.step = step


@dataclass(frozen=True, slots=True)
class Proposal:
    """Numbers that a slot wants to hold from a step on: of the key at `key_index`, or with None of the whole job.

    `id` is drawn by the proposer's process, `process`. `since` is when the shard began to hold it, seconds.
    """

    id: bytes
    slot: int
    process: bytes
    step: int
    key_index: int | None
    numbers: Mapping[str, float]
    since: float


class HyperHold:
    """What holds steps: a change from the step of the proposal `pending` on is not decided yet."""

    pending: Proposal | None = None

    def holds(self, step: int) -> bool:
        """Whether a step is not to be applied yet."""
        return self.pending is not None and step >= self.pending.step

    def reason(self) -> str:
        """What it waits for, in words."""
        pending = self.pending
        return (
            "nothing"
            if pending is None
            else f"slot {pending.slot}, which changes hyper-parameters from step {pending.step}"
        )
