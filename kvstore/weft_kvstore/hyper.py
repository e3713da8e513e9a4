"""Hyper-parameters of keys by step: which numbers they may be given, and changes while a job runs. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from operator import itemgetter
from typing import Any, Final, NamedTuple

from weft_graph.rules.schedule import Schedule, schedule_from_json
from weft_kernels.rules.record import Hyper, Rule
from weft_kvstore.description.check import hyper_of, is_ruled, largest_magnitude, magnitude_text, rule_of
from weft_kvstore.description.records import KeyDescription, StoreDescription

# --- Which numbers a hyper-parameter may be given, and by whom --------------------------------------------------------


class HyperScope:
    """The keys that have a hyper-parameter `name` from one key's changes, or where `key` is None from the job's, and
    the numbers that it may have. To make one takes a look at every key."""

    __slots__ = ("_keys", "_most", "_name", "_rule", "_slots", "_tightest", "names")

    def __init__(self, description: StoreDescription, key: KeyDescription | None, name: str) -> None:
        """Raises ValueError where no rule has the number."""
        some = [one for one in (description.keys if key is None else [key]) if is_ruled(one)]
        rule = rule_of(description, key)
        if not some:
            raise ValueError("the shards update it by no rule")
        if name not in rule.hyper:
            raise ValueError(f"rule {rule.name!r} has no {name!r}; it has {', '.join(sorted(rule.hyper)) or 'none'}")
        keys = [one for one in some if key is not None or (one.rule is None and name not in (one.hyper or ()))]
        self._rule, self._name, self._keys, self.names = rule, name, keys, [one.key for one in keys]
        self._slots = frozenset(range(description.slots)).intersection(*[one.slots for one in keys])
        self._tightest = min(keys, default=None, key=lambda one: largest_magnitude(one, rule, name))
        self._most = math.inf if self._tightest is None else largest_magnitude(self._tightest, rule, name)

    def checked(self, slot: int, value: object) -> float:
        """The number that a slot gives it. Raises ValueError, which names the key, for one that is not finite in every
        key's own type, which rules compute in, multipliers included; and where the slot does not contribute to a key:
        its changes come in order with its own pushes alone."""
        try:
            number = math.nan if isinstance(value, str) else float(value)  # type: ignore[arg-type]  # or what is none
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{self._name!r}: a finite number, not {value!r}")
        if abs(number) > self._most:
            assert self._tightest is not None
            raise ValueError(magnitude_text(self._tightest, self._rule, self._name, number))
        if slot not in self._slots:
            key = next(one for one in self._keys if slot not in one.slots)
            raise ValueError(f"only slots {list(key.slots)} contribute to key {key.key!r}, and may change it")
        return number


# --- Hyper-parameters that were changed while a job runs, each from a step on -----------------------------------------


MERGED: Final = -1
"""In place of the slot, of changes of several slots that have become one."""


class Change(NamedTuple):
    """A slot has changed `numbers` from a step on. `held` are all that were changed and hold then."""

    step: int
    slot: int
    numbers: Mapping[str, float]
    held: Mapping[str, float]


_step_and_slot: Final = itemgetter(0, 1)


class HyperTimeline:
    """Changes by step and slot, in order: each holds until that of a later step, or of a higher slot at the same step.
    So the order in which slots' changes arrive means nothing.

    `count` grows with each change, and `known_from` is the first step of which nothing is forgotten: steps before it
    have its numbers. May be read on any thread while one other changes it: the last change is added, or replaced, in
    `_changes`; else another list takes its place.
    """

    __slots__ = ("_changes", "count", "known_from")

    def __init__(self) -> None:
        self.count = 0
        self.known_from = 0
        self._changes: list[Change] = []

    def __len__(self) -> int:
        """How many changes it keeps."""
        return len(self._changes)

    def set(self, step: int, slot: int, numbers: Mapping[str, float]) -> None:
        """A slot has these hold from `step` on."""
        now = self._changes
        first = last = bisect_left(now, (step, slot), key=_step_and_slot)
        if first < len(now) and _step_and_slot(now[first]) == (step, slot):
            last, numbers = first + 1, {**now[first].numbers, **numbers}
        held = _over(now[first - 1].held if first else {}, numbers)
        change = Change(step, slot, dict(numbers), held)
        if last == len(now):
            now[first:] = [change]
        else:
            changed = [change]
            for one in now[last:]:
                held = _over(held, one.numbers)
                if held == one.held:
                    break  # So do all behind it.
                changed.append(one._replace(held=held))
            self._changes = [*now[:first], *changed, *now[last + len(changed) - 1 :]]
        self.count += 1

    def at(self, step: int) -> Mapping[str, float]:
        """What was changed and holds at a step."""
        step, now = max(step, self.known_from), self._changes
        index = bisect_right(now, step, key=itemgetter(0))
        return now[index - 1].held if index else {}

    def forget(self, before: int) -> None:
        """No step before this one is asked for any more: what only those need is dropped."""
        now = self._changes
        index = bisect_left(now, before, key=itemgetter(0))
        if index > 1:
            last = now[index - 1]
            self.known_from = last.step
            self._changes = [Change(last.step, MERGED, last.held, last.held), *now[index:]]

    def keep(self, most: int, before: float = math.inf) -> None:
        """Forgets the earliest changes beyond so many, where each is of another step, and of steps before this one."""
        if len(self._changes) > most:
            self.forget(int(min(self._changes[1 - most].step, before)))

    def withdraw(self, slot: int, step: int) -> None:
        """Drops a slot's changes from `step` on."""
        kept = [one for one in self._changes if one.slot != slot or one.step < step]
        if len(kept) < len(self._changes):
            held: Mapping[str, float] = {}
            for index, one in enumerate(kept):
                held = _over(held, one.numbers)
                kept[index] = one._replace(held=held)
            self._changes = kept
            self.count += 1


def _over(held: Mapping[str, float], numbers: Mapping[str, float]) -> Mapping[str, float]:
    """What holds after a change."""
    return numbers if held.keys() <= numbers.keys() else {**held, **numbers}


# --- A key's hyper-parameters: the job's numbers and schedules, what was changed since, and the key's multipliers -----


class KeyHyper:
    """`at(step)` gives the numbers for the update of that step, counted from 0.

    Of numbers that change the last step's are kept, since all slices of a key ask for them. A changed number takes the
    place of the schedule from there on. What was changed for this key alone is in `own`, and stands before what was
    changed for the whole job.
    """

    __slots__ = ("_base", "_described", "_last", "_multipliers", "_schedules", "_when", "constant", "job", "own")

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
        self.job = HyperTimeline() if job is None else job
        self._described = frozenset(described)
        self._multipliers = dict(multipliers)
        self._schedules: dict[str, Schedule] = {
            name: schedule_from_json(value) for name, value in values.items() if isinstance(value, Mapping)
        }
        numbers = {name: float(value) for name, value in values.items() if not isinstance(value, Mapping)}
        self._base: Hyper = {name: value * self._factor(name) for name, value in numbers.items()}
        self._last: Hyper = self._base
        self._when = (-1, 0)
        self.constant = None if self._schedules else self._base
        """The numbers of every step; None where there is a schedule, or once the job's numbers have changed."""

    @classmethod
    def of(
        cls,
        description: StoreDescription,
        key: KeyDescription,
        rule: Rule,
        job: HyperTimeline,
        own: HyperTimeline | None = None,
    ) -> KeyHyper:
        """Those of a key under its rule. What is changed for the job is of the store's rule, not of one of its own."""
        values = {**rule.hyper, **hyper_of(description, key)}
        of_job = job if key.rule is None else None
        return cls(values, key.multipliers, job=of_job, described=key.hyper or (), own=own)

    def at(self, step: int) -> Hyper:
        changes = self.job.count + self.own.count
        if not changes and not self._schedules:
            return self._base
        if self._when != (step, changes):
            now = {name: schedule.at(step) for name, schedule in self._schedules.items()}
            now |= {name: value for name, value in self.job.at(step).items() if name not in self._described}
            now |= self.own.at(step)
            self._last = {**self._base, **{name: value * self._factor(name) for name, value in now.items()}}
            self._when = (step, changes)
        return self._last

    def _factor(self, name: str) -> float:
        return self._multipliers.get(name, 1.0)
