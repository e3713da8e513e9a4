"""The keys of a store by the names that users call them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from weft_graph.program import Update
from weft_kvstore.description.check import hyper_of, rule_of
from weft_kvstore.description.form import UserKey, store_name, user_key, user_keys
from weft_kvstore.description.records import KeyDescription, Mode, StoreDescription, is_given
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.hyper import MOST_WAITING, HyperTimeline, KeyHyper, checked_numbers

# --- The keys of a description by the names that users call them, and what one slot may do with each ------------------


_BY_ROWS: Final = ("push", "pull", "pushpull", "pull_state", "set", "restore")
"""Calls that there are for rows of tables too."""

CHANGES_KEPT: Final = 2 * MOST_WAITING
"""Changes of hyper-parameters that are remembered, of the job and of each key, the latest: all that a shard keeps for
steps to come, and as many of before."""


class KeyRegistry:
    """Finds keys; an error begins with slot, call and key."""

    def __init__(self, description: StoreDescription, slot: int) -> None:
        self.slot = slot
        self.slots = description.slots
        self._description = description
        self._keys = {key.key: key for key in user_keys(description)}
        self._strings = {name: key for name, key in self._keys.items() if user_key(name) == name}
        """Those whose users call them what the store does."""
        self._job = HyperTimeline()
        self._own: dict[str, HyperTimeline] = {}

    @property
    def keys(self) -> tuple[UserKey, ...]:
        """All keys, as their users call them."""
        return tuple(user_key(name) for name in self._keys)

    @property
    def pushed(self) -> list[str]:
        """The store's names of the keys that the slot contributes to."""
        return [name for name, key in self._keys.items() if self.slot in key.slots]

    @property
    def tables(self) -> set[str]:
        """The store's names of the tables."""
        return {name for name, key in self._keys.items() if key.rows}

    def call(self, call: str) -> str:
        """How an error of a call begins."""
        return f"slot {self.slot}: {call}"

    def where(self, call: str, key: object) -> str:
        """How an error of a call of a key begins."""
        return f"slot {self.slot}: {call} of key {key!r}"

    def known(self, key: object, call: str) -> KeyDescription:
        """Any key. Raises StoreRefusedError, as all calls here do."""
        found = self._strings.get(key) if type(key) is str else None
        if found is not None:
            return found
        try:
            found = self._keys.get(store_name(key))
        except ValueError as error:
            raise StoreRefusedError(f"slot {self.slot}: {call}: {error}") from None
        if found is None:
            raise StoreRefusedError(f"{self.where(call, key)}: the store has no such key; {self._what_there_is(key)}")
        return found

    def find(self, key: object, call: str, *, rows: bool | None, pushes: bool = False) -> KeyDescription:
        """A table where `rows`, else a key that is none; with None any key. One that the slot contributes to where it
        `pushes`."""
        found = self.known(key, call)
        if found.rows and rows is False:
            detail = f"say which rows, with {call}_rows" if call in _BY_ROWS else f"of tables there is no {call}"
            raise StoreRefusedError(f"{self.where(call, key)}: it is a table: {detail}")
        if rows and not found.rows:
            raise StoreRefusedError(f"{self.where(call, key)}: it is no table: call {call.removesuffix('_rows')}")
        if pushes and self.slot not in found.slots:
            raise StoreRefusedError(f"{self.where(call, key)}: only slots {list(found.slots)} contribute to it")
        return found

    def buffered(self, key: object, call: str) -> str:
        """The store's name of a key that may have an array of the store's own."""
        found = self.find(key, call, rows=False)
        if found.half is not None:
            detail = f"its shard has float32, and what travels is {found.half}: push and pull arrays of your own"
            raise StoreRefusedError(f"{self.where(call, key)}: {detail}")
        return found.key

    def listed(
        self, call: str, key: object, *values: Any, rows: bool | None = False, pushes: bool = False
    ) -> tuple[bool, list[Any], list[KeyDescription], list[list[Any]]]:
        """Whether one key was given; the keys as they were given and as `find` finds them, and for each of `values` one
        value a key: None stands for nothing for all.

        Raises StoreRefusedError where there are more or fewer values than keys, or a key is named twice.
        """
        if isinstance(key, str | int | np.integer):
            return True, [key], [self.find(key, call, rows=rows, pushes=pushes)], [[value] for value in values]
        where = self.call(call)
        if not isinstance(key, Sequence) or isinstance(key, bytes | bytearray | memoryview):
            raise StoreRefusedError(f"{where}: a key or a list of keys, not {type(key).__name__}")
        keys = list(key)
        specs = [self.find(one, call, rows=rows, pushes=pushes) for one in keys]
        if len({spec.key for spec in specs}) < len(specs):
            names = [spec.key for spec in specs]
            twice = next(name for number, name in enumerate(names) if name in names[:number])
            raise StoreRefusedError(f"{where}: key {user_key(twice)!r} is named twice")
        found = []
        for value in values:
            if value is not None and (not isinstance(value, list | tuple) or len(value) != len(keys)):
                detail = f"{len(value)} values" if isinstance(value, list | tuple) else type(value).__name__
                raise StoreRefusedError(f"{where}: {len(keys)} keys take a list of as many values, not {detail}")
            found.append([None] * len(keys) if value is None else list(value))
        return False, keys, specs, found

    def check_given(self, key: object, spec: KeyDescription) -> None:
        """Raises StoreRefusedError for a key whose first value no worker says."""
        if not is_given(spec):
            raise StoreRefusedError(
                f"{self.where('init', key)}: the shards make its first value ({spec.initializer.op_type}); one can be "
                'given where the description says initializer = "given"'
            )

    def state_of(self, spec: KeyDescription) -> tuple[str, ...]:
        """What the rule keeps beside a key, by name, in the order of the store."""
        return tuple(rule_of(self._description, spec).state) if spec.update is Update.RULE else ()

    def check_sync(self, call: str) -> None:
        """Raises StoreRefusedError where versions are each slot's own."""
        mode = self._description.mode
        if mode is not Mode.SYNC:
            raise StoreRefusedError(f"{self.call(call)}: in mode {mode.value} each slot has versions of its own")

    def checked_number(self, name: str, value: object, key: object) -> float:
        """A value for a number of the rule, of a key or with None of all."""
        where = self.call("set_hyper") if key is None else self.where("set_hyper", key)
        of = None if key is None else self.known(key, "set_hyper")
        try:
            return checked_numbers(self._description, of, {name: value})[name]
        except ValueError as error:
            raise StoreRefusedError(f"{where}: {error}") from None

    def hyper(self, key: object, step: int) -> dict[str, float]:
        """The rule's hyper-parameters for a key's update of that step, and what was `changed`. Raises StoreRefusedError
        for a step of which that is forgotten."""
        found = self.known(key, "hyper")
        numbers = {**rule_of(self._description, found).hyper, **hyper_of(self._description, found)}
        job, own = self._job if found.rule is None else None, self._own.get(found.key)
        hyper = KeyHyper(numbers, found.multipliers, job=job, described=found.hyper or (), own=own)
        at = dict(hyper.at(step))
        # Looked at last: on another thread something may have been forgotten meanwhile.
        first = max([one.known_from for one in (job, own) if one is not None], default=0)
        if step < first:
            detail = f"what was changed before step {first} is forgotten"
            raise StoreRefusedError(f"{self.where('hyper', key)}, step {step}: {detail}")
        return at

    def changed(self, name: str | None, step: int, numbers: Mapping[str, float]) -> None:
        """These hold from a step on, for a key of the store's or with None for all. One thread at a time may call it;
        others may ask meanwhile."""
        timeline = self._job if name is None else self._own.setdefault(name, HyperTimeline())
        timeline.set(step, numbers)
        timeline.keep(CHANGES_KEPT)

    def _what_there_is(self, key: object) -> str:
        names = list(self.keys)
        twin = str(key) if isinstance(key, int) else int(key) if isinstance(key, str) and key.isdecimal() else None
        if twin in names:
            return f"there is {twin!r}, which is another"
        return f"there are {', '.join(map(repr, names[:8]))}{', ...' if len(names) > 8 else ''}" if names else "none"
