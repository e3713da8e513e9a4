"""The keys that a store has, found by the names that a caller says, and what is worked out of them once. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weft_graph.program import Update
from weft_kvstore.description.check import rule_of
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.operations.key_set import KeySet
from weft_kvstore.sharding.row_cut import RowCut, row_cut

KEY_SETS_KEPT: Final = 64
"""Of several keys, so many are remembered: a program that trains has a few."""


class KnownKeys:
    """One slot's keys. `places` has the place of each in the description. Whoever asks for one says for which `call`,
    as the error names it. Any thread may ask: those that make the same thing at once make it alike."""

    __slots__ = ("_cuts", "_description", "_many", "_one", "_slot", "_state", "places")

    def __init__(self, description: StoreDescription, slot: int) -> None:
        self.places = {key.key: place for place, key in enumerate(description.keys)}
        self._description = description
        self._slot = slot
        self._one: dict[str, KeySet] = {}
        self._many: dict[tuple[str, ...], KeySet] = {}
        self._cuts: dict[str, RowCut] = {}
        self._state: dict[str, tuple[str, ...]] = {}

    def known(self, name: str, call: str) -> KeyDescription:
        """Any key. Raises StoreRefusedError for one that there is not."""
        place = self.places.get(name)
        if place is None:
            raise StoreRefusedError(f"slot {self._slot}: {call} of key {name!r}: the store has no such key")
        return self._description.keys[place]

    def table(self, name: str, call: str) -> KeyDescription:
        """A key that goes by rows. Raises StoreRefusedError for one that does not."""
        key = self.known(name, call)
        if not key.rows:
            raise StoreRefusedError(f"slot {self._slot}: {call} of rows of key {name!r}: it is no table")
        return key

    def one(self, name: str, call: str) -> KeySet:
        """A key that is no table, as a set of one. Raises StoreRefusedError."""
        found = self._one.get(name)
        if found is None:
            found = self._one[name] = KeySet([self._dense(name, call)], [self.places[name]], self._slot)
        return found

    def many(self, names: Sequence[str], call: str) -> KeySet:
        """Keys that are distinct and no tables. Raises StoreRefusedError."""
        if isinstance(names, str):
            raise StoreRefusedError(f"slot {self._slot}: {call} of keys: {names!r} is one name, not several")
        wanted = tuple(names)
        if len(wanted) == 1:
            return self.one(wanted[0], call)
        found = self._many.get(wanted)
        if found is None:
            found = self._set_of(wanted, call)
            if len(self._many) >= KEY_SETS_KEPT:
                self._many = {}
            self._many[wanted] = found
        return found

    def state_of(self, key: KeyDescription) -> tuple[str, ...]:
        """The names of the arrays that its rule keeps; none where no rule updates it."""
        if key.update is not Update.RULE:
            return ()
        found = self._state.get(key.key)
        if found is None:
            found = self._state[key.key] = tuple(rule_of(self._description, key).state)
        return found

    def row_cut(self, key: KeyDescription) -> RowCut:
        """How a table's rows are dealt to shards, and cut into chunks."""
        found = self._cuts.get(key.key)
        if found is None:
            found = row_cut(key, self._description.slice_bytes, len(self._description.shards))
            self._cuts[key.key] = found
        return found

    def _set_of(self, wanted: tuple[str, ...], call: str) -> KeySet:
        keys = [self._dense(name, call) for name in wanted]
        if len(set(wanted)) < len(wanted):
            twice = next(name for number, name in enumerate(wanted) if name in wanted[:number])
            raise StoreRefusedError(f"slot {self._slot}: {call} of {len(wanted)} keys: {twice!r} is there twice")
        return KeySet(keys, [self.places[name] for name in wanted], self._slot)

    def _dense(self, name: str, call: str) -> KeyDescription:
        key = self.known(name, call)
        if key.rows:
            raise StoreRefusedError(f"slot {self._slot}: {call} of key {name!r}: it is a table, which goes by rows")
        return key
