"""Hyper-parameters of keys by step: which numbers they may be given, and changes while a job runs. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from weft_graph.rules.schedule import Schedule, schedule_from_json
from weft_kernels.gradient_bounds import BOUNDS
from weft_kernels.rules.record import Hyper, Rule
from weft_kvstore.description.check import hyper_of, is_ruled, largest_magnitude, magnitude_text, rule_of
from weft_kvstore.description.records import KeyDescription, StoreDescription

# --- Which numbers a hyper-parameter may be given, and by whom --------------------------------------------------------


class HyperScope:
    """The keys that a change of the hyper-parameter `name` is for, and the numbers that it may give: a change of one
    `key`, or of all keys that have the job's number where that is None. Making one looks at every key."""

    __slots__ = ("_keys", "_name", "_rule", "_slots", "_tightest", "names")

    def __init__(self, description: StoreDescription, key: KeyDescription | None, name: str) -> None:
        """Raises ValueError where no rule has the number."""
        some = [one for one in (description.keys if key is None else [key]) if is_ruled(one)]
        rule = rule_of(description, key)
        if not some:
            raise ValueError("the shards update it by no rule")
        if name not in rule.hyper:
            hint = ", unless its description names it" if name in BOUNDS else ""
            known = ", ".join(sorted(rule.hyper)) or "none"
            raise ValueError(f"rule {rule.name!r} has no {name!r}{hint}; it has {known}")
        keys = [one for one in some if key is not None or (one.rule is None and name not in (one.hyper or ()))]
        self._rule, self._name, self._keys, self.names = rule, name, keys, [one.key for one in keys]
        self._slots = frozenset(range(description.slots)).intersection(*[one.slots for one in keys])
        self._tightest = min(keys, default=None, key=lambda one: largest_magnitude(one, rule, name))

    def checked(self, slot: int, value: object) -> float:
        """The number that a slot gives it. Raises ValueError, which names the key, for one that is not finite,
        multiplied, in every key's own type, in which rules compute; and if the slot does not contribute to a key, as
        changes are in order only with their own slot's pushes."""
        try:
            number = math.nan if isinstance(value, str) else float(value)  # type: ignore[arg-type]  # or what is none
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{self._name!r}: a finite number, not {value!r}")
        if self._tightest is not None and abs(number) > largest_magnitude(self._tightest, self._rule, self._name):
            raise ValueError(magnitude_text(self._tightest, self._rule, self._name, number))
        if slot not in self._slots:
            key = next(one for one in self._keys if slot not in one.slots)
            raise ValueError(f"only slots {list(key.slots)} contribute to key {key.key!r}, and may change it")
        return number


# --- Hyper-parameters that were changed while a job runs, each from a step on -----------------------------------------


class Change(NamedTuple):
    """A slot has changed a number from a step on. That of slot `FORGOTTEN` stands for the earliest ones."""

    step: int
    slot: int
    number: float


FORGOTTEN: Final = -1


class HyperTimeline:
    """What was changed of a store's hyper-parameters, by step and slot: the changes of each number, in order, for a key
    by its name in the description, or under the empty name for all. A change holds until that of a later step, or of a
    higher slot at the same step. So the order in which slots' changes arrive means nothing.

    `count` grows with each change; `kept` are those that are not forgotten. May be read on any thread while one other
    changes it: a list only has changes put behind its last, or in its place; else another list takes its place.
    """

    __slots__ = ("_changes", "_description", "_known_from", "_scopes", "_tried", "count", "kept")

    def __init__(self, description: StoreDescription) -> None:
        self._description = description
        self._scopes: dict[tuple[str, str], HyperScope] = {}
        self.count = self.kept = 0
        self._changes: dict[str, dict[str, list[Change]]] = {}
        self._known_from: dict[str, int] = {}
        self._tried: tuple[int, float] | None = None

    def known_from(self, key: str) -> int:
        """The first step of which nothing is forgotten of a key; steps before it have its numbers."""
        return max(self._known_from.get("", 0), self._known_from.get(key, 0))

    def scope(self, key: KeyDescription | None, name: str) -> HyperScope:
        """Raises ValueError where no rule has the number."""
        of = key.key if key is not None else "", name
        if of not in self._scopes:
            self._scopes[of] = HyperScope(self._description, key, name)
        return self._scopes[of]

    def set(self, step: int, slot: int, key: str, name: str, number: float) -> None:
        """A slot has changed a number of a key, or of all, from `step` on."""
        if step < self._known_from.get(key, 0):
            step, slot = 0, FORGOTTEN
        names = self._changes.setdefault(key, {})
        changes = names.setdefault(name, [])
        first, stop = bisect_left(changes, (step, slot)), bisect_left(changes, (step, slot + 1))
        if slot == FORGOTTEN and first < stop:
            return  # What is known of those steps is later.
        if stop < len(changes):
            changes = changes.copy()
        changes[first:stop] = [Change(step, slot, number)]
        names[name] = changes
        self.kept += first == stop and slot != FORGOTTEN
        self.count += 1

    def at(self, step: int, key: str) -> dict[str, float]:
        """What was changed of a key, or of all, and holds at a step."""
        found = {}
        for name, changes in [*self._changes.get(key, {}).items()]:
            if stop := bisect_left(changes, (step + 1,)):
                found[name] = changes[stop - 1].number
        return found

    def forget(self, before: int) -> None:
        """No step before this one is asked for any more: what only those need is dropped."""
        for key, names in self._changes.items():
            for name, changes in names.items():
                stop = bisect_left(changes, (before,))
                dropped = [one for one in changes[:stop] if one.slot != FORGOTTEN]
                if dropped:
                    self._known_from[key] = max(self._known_from.get(key, 0), dropped[-1].step)
                    names[name] = [Change(0, FORGOTTEN, dropped[-1].number), *changes[stop:]]
                    self.kept -= len(dropped)

    def keep(self, most: int, before: float = math.inf) -> None:
        """Of more than `most` changes, keeps the latest `most // 2`, and those of steps from `before` on."""
        tried = self.kept // max(most // 8, 1), before
        if self.kept > most and tried != self._tried:  # Else nothing could be forgotten, and little has changed since.
            every = [changes for names in self._changes.values() for changes in names.values()]
            steps = sorted([one.step for changes in every for one in changes if one.slot != FORGOTTEN])
            self.forget(int(min(steps[-(most // 2)], before)))
            self._tried = tried if self.kept > most else None

    def withdraw(self, slot: int, first: Callable[[str], int]) -> None:
        """Drops a slot's changes of a key, or of all, from the step on that `first` tells."""
        for key, names in self._changes.items():
            for name, changes in names.items():
                names[name] = [one for one in changes if one.slot != slot or one.step < first(key)]
                self.kept -= len(changes) - len(names[name])
        self.count += 1

    def of(self, key: KeyDescription, rule: Rule, *, alone: bool = True) -> KeyHyper:
        """The hyper-parameters of a key under its rule. `alone`: also those that are changed for this key alone."""
        values = {**rule.hyper, **hyper_of(self._description, key)}
        shared = () if key.rule is not None else rule.hyper.keys() - (key.hyper or {}).keys()
        return KeyHyper(values, key.multipliers, changed=self, shared=shared, key=key.key if alone else "")


# --- A key's hyper-parameters: the job's numbers and schedules, what was changed since, and the key's multipliers -----


class KeyHyper:
    """`at(step)` gives the numbers for the update of that step, counted from 0.

    Of numbers that change the last step's are kept, since all slices of a key ask for them. A changed number takes the
    place of the schedule from there on. What was changed for this key alone stands before what was changed for all.
    """

    __slots__ = ("_base", "_changed", "_key", "_last", "_multipliers", "_schedules", "_shared", "_when", "constant")

    def __init__(
        self,
        values: Mapping[str, float | Mapping[str, Any]],
        multipliers: Mapping[str, float],
        *,
        changed: HyperTimeline | None = None,
        shared: Collection[str] = (),
        key: str = "",
    ) -> None:
        """From `changed` come the changes for all keys, of the numbers `shared`, and those for `key` alone, if it is
        named. Raises GraphFormatError for a schedule that there is not."""
        self._changed = changed
        self._shared = frozenset(shared)
        self._key = key
        self._multipliers = dict(multipliers)
        self._schedules: dict[str, Schedule] = {
            name: schedule_from_json(value) for name, value in values.items() if isinstance(value, Mapping)
        }
        numbers = {name: float(value) for name, value in values.items() if not isinstance(value, Mapping)}
        self._base: Hyper = {name: value * self._factor(name) for name, value in numbers.items()}
        self._last: Hyper = self._base
        self._when = (-1, 0)
        self.constant = None if self._schedules else self._base
        """The numbers of every step; None where there is a schedule, or once something was changed."""

    def at(self, step: int) -> Hyper:
        count = 0 if self._changed is None else self._changed.count
        if not count and not self._schedules:
            return self._base
        if self._when != (step, count):
            now = {name: schedule.at(step) for name, schedule in self._schedules.items()}
            if self._changed is not None:
                for_all = self._changed.at(step, "")
                now |= {name: value for name, value in for_all.items() if name in self._shared}
                now |= self._changed.at(step, self._key) if self._key else {}
            self._last = {**self._base, **{name: value * self._factor(name) for name, value in now.items()}}
            self._when = (step, count)
        return self._last

    def _factor(self, name: str) -> float:
        return self._multipliers.get(name, 1.0)
