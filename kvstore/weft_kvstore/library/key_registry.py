"""The keys of a store by the names that users call them, and the hyper-parameters that each has. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from weft_kvstore.client.plan import Keys
from weft_kvstore.description.check import rule_of
from weft_kvstore.description.form import UserKey
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.hyper import HyperTimeline

UserKeys: TypeAlias = list[str] | list[int] | list[UserKey] | tuple[UserKey, ...]

CHANGES_KEPT: Final = 1 << 15
"""Changes of hyper-parameters that are remembered at most. Where there were more, the later half of them is."""


class KeyRegistry(Keys):
    """A slot's keys as its user calls them, with the changes of hyper-parameters that it has made."""

    def __init__(self, description: StoreDescription, slot: int) -> None:
        super().__init__(description, slot)
        self._hyper = HyperTimeline(description)

    def changing(self, name: str, value: object, key: object) -> tuple[str | None, float, list[str]]:
        """A change of a number for a key, or with None for all: the store's name of the key, the number, and the keys
        that have it then."""
        where = self.call("set_hyper") if key is None else self.where("set_hyper", key)
        of = None if key is None else self.find(key, "set_hyper")
        try:
            scope = self._hyper.scope(of, name)
            return None if of is None else of.key, scope.checked(self.slot, value), scope.names
        except ValueError as error:
            raise StoreRefusedError(f"{where}: {error}") from None

    def hyper(self, key: object, step: int) -> dict[str, float]:
        """The rule's hyper-parameters for a key's update of that step, and what was `changed`. Raises StoreRefusedError
        for a step of which that is forgotten."""
        found = self.find(key, "hyper")
        at = dict(self._hyper.of(found, rule_of(self.description, found)).at(step))
        # Looked at last: on another thread something may have been forgotten meanwhile.
        first = self._hyper.known_from(found.key)
        if step < first:
            detail = f"what was changed before step {first} is forgotten"
            raise StoreRefusedError(f"{self.where('hyper', key)}, step {step}: {detail}")
        return at

    def changed(self, key: str | None, step: int, name: str, number: float) -> None:
        """A number holds from a step on, for a key of the store's or with None for all. One thread at a time may call
        it; others may ask meanwhile."""
        self._hyper.set(step, self.slot, key or "", name, number)
        self._hyper.keep(CHANGES_KEPT)

    def state_names(self, spec: KeyDescription, given: Any, where: str) -> tuple[str, ...]:
        """The names of the rule's arrays of a key, which a user has given; none where there is None. Raises
        StoreRefusedError for others."""
        if given is None:
            return ()
        if not isinstance(given, Mapping):
            raise StoreRefusedError(f"{where}: state: a dictionary of arrays by name, not a {type(given).__name__}")
        wanted = self.state_of(spec)
        if given.keys() != set(wanted):
            kept, found = (", ".join(map(str, names)) or "nothing" for names in (wanted, given))
            raise StoreRefusedError(f"{where}: state: the rule keeps {kept}, not {found}")
        return wanted
