"""Hyper-parameters of keys by step: which numbers they may be given, and changes while a job runs. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

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


Numbers: TypeAlias = Mapping[str, float]
Held: TypeAlias = dict[str, Numbers]
"""Hyper-parameters that hold: of each key by its name in the description, and of all under the empty name."""


class Change(NamedTuple):
    """A slot has changed `numbers` from a step on, of a key by its name in the description, or of all where that is
    empty."""

    step: int
    slot: int
    key: str
    numbers: Numbers


Kept: TypeAlias = tuple[dict[str, int], Held, list[Change]]
Place: TypeAlias = tuple[int, Held]

PLACES_APART: Final = 64
"""Changes between two of which it is remembered what holds after them."""

_step = _after = itemgetter(0)
_order: Final = itemgetter(0, 1, 2)


class HyperTimeline:
    """What was changed of a store's hyper-parameters, by step and slot. A change holds until that of a later step, or
    of a higher slot at the same step. So the order in which slots' changes arrive means nothing.

    `count` grows with each change. May be read on any thread while one other changes it.
    """

    __slots__ = ("_description", "_kept", "_places", "_scopes", "count")

    def __init__(self, description: StoreDescription) -> None:
        self._description = description
        self._scopes: dict[tuple[str, str], HyperScope] = {}
        self.count = 0
        self._kept: Kept = {}, {}, []
        """The steps from which on changes are known, by key; what holds at these; and the changes since, in order. One
        that is the last in order is added; else all of it is replaced at once."""
        self._places: tuple[object, list[Place], Place] = None, [], (0, {})
        """Of these changes: what holds after every 64th or so that was looked at, in order, and after those that were
        looked at last. Replaced as a whole."""

    def known_from(self, key: str) -> int:
        """The first step of which nothing is forgotten of a key; steps before it have its numbers."""
        return max(self._kept[0].get("", 0), self._kept[0].get(key, 0))

    @property
    def changes(self) -> Sequence[Change]:
        return self._kept[2]

    def scope(self, key: KeyDescription | None, name: str) -> HyperScope:
        """Raises ValueError where no rule has the number."""
        of = key.key if key is not None else "", name
        if of not in self._scopes:
            self._scopes[of] = HyperScope(self._description, key, name)
        return self._scopes[of]

    def set(self, step: int, slot: int, key: str, numbers: Numbers) -> None:
        """A slot has these hold from `step` on, of a key or of all."""
        before = known_from, held, now = self._kept
        if step < known_from.get(key, 0):
            self._kept = known_from, {**held, key: {**numbers, **held.get(key, {})}}, now
        else:
            change = Change(step, slot, key, numbers)
            first = stop = bisect_left(now, change[:3], key=_order)
            if first < len(now) and now[first][:3] == change[:3]:
                change, stop = change._replace(numbers={**now[first].numbers, **numbers}), first + 1
            if first == len(now):
                now.append(change)
            else:
                places, last = self._places_of(before)
                places = places[: bisect_right(places, first, key=_after)]
                self._kept = known_from, held, [*now[:first], change, *now[stop:]]
                self._places = self._kept, places, last if last[0] <= first else places[-1]
        self.count += 1

    def at(self, step: int) -> Held:
        """What was changed and holds at a step."""
        kept = self._kept
        places, last = self._places_of(kept)
        stop = bisect_right(kept[2], step, key=_step)
        first, held = places[bisect_right(places, stop, key=_after) - 1]
        if first < last[0] <= stop:
            first, held = last
        if first < stop:
            held = dict(held)
            for index, one in enumerate(kept[2][first:stop], first + 1):
                held[one.key] = {**held.get(one.key, {}), **one.numbers}
                if not index % PLACES_APART and index > places[-1][0]:
                    places = [*places, (index, dict(held))]
        self._places = kept, places, (stop, held)
        return held

    def _places_of(self, kept: Kept) -> tuple[list[Place], Place]:
        of, places, last = self._places
        first = 0, kept[1]
        return (places, last) if of is kept else ([first], first)

    def forget(self, before: int) -> None:
        """No step before this one is asked for any more: what only those need is dropped."""
        known_from, _, now = self._kept
        index = bisect_left(now, before, key=_step)
        if index:
            known_from = {**known_from, **{one.key: one.step for one in now[:index]}}
            held = self.at(now[index - 1].step)
            places = [(0, held), *[(at - index, then) for at, then in self._places_of(self._kept)[0] if at > index]]
            self._kept = known_from, held, now[index:]
            self._places = self._kept, places, places[0]

    def keep(self, most: int, before: float = math.inf) -> None:
        """Forgets the earliest changes beyond so many, where each is of another step, and of steps before this one."""
        if len(self.changes) > most:
            self.forget(int(min(self.changes[-most].step, before)))

    def withdraw(self, slot: int, first: Callable[[str], int]) -> None:
        """Drops a slot's changes of a key, or of all, from the step on that `first` tells."""
        known_from, held, now = self._kept
        self._kept = known_from, held, [one for one in now if one.slot != slot or one.step < first(one.key)]
        self.count += 1

    def of(self, key: KeyDescription, rule: Rule, *, alone: bool = True) -> KeyHyper:
        """Those of a key under its rule; `alone`: with what was changed for this key and no other."""
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
        """It has the numbers `shared` as they are `changed` for all, and what is changed for its `key`, if it has one.

        Raises GraphFormatError for a schedule that there is not.
        """
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
                held = self._changed.at(step)
                now |= {name: value for name, value in held.get("", {}).items() if name in self._shared}
                now |= held.get(self._key, {}) if self._key else {}
            self._last = {**self._base, **{name: value * self._factor(name) for name, value in now.items()}}
            self._when = (step, count)
        return self._last

    def _factor(self, name: str) -> float:
        return self._multipliers.get(name, 1.0)
