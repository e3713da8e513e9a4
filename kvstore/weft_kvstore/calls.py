"""What a caller has asked of a store, once it was checked. `place` is the key's place in the description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from weft_kvstore.cargo import Cargo
from weft_kvstore.store import Array

_CALLS: Final = {Cargo.GRADIENT: ("push", "step"), Cargo.VALUE: ("set", "version")}


@dataclass(frozen=True, slots=True)
class Sent:
    """A gradient of a step, or a value to be set at a version; `rows` of a table, or all of a key."""

    cargo: Cargo
    name: str
    place: int
    step: int
    priority: int
    rows: bool = False

    def __str__(self) -> str:
        call, step = _CALLS[self.cargo]
        return f"{call} of {'rows of ' if self.rows else ''}key {self.name!r}, {step} {self.step}"


@dataclass(frozen=True, slots=True)
class Asked:
    """A value at a version, or the rule's state: `names` are its arrays, None for the value itself."""

    name: str
    place: int
    version: int
    names: tuple[str, ...] | None
    settled: bool
    priority: int
    rows: bool = False

    @property
    def array_count(self) -> int:
        return 1 if self.names is None else len(self.names)

    def named(self, arrays: Sequence[Array]) -> Array | Mapping[str, Array]:
        """The arrays, as the caller gets them."""
        return arrays[0] if self.names is None else dict(zip(self.names, arrays, strict=True))

    def __str__(self) -> str:
        what = "pull" if self.names is None else "pull of the state"
        return f"{what} of {'rows of ' if self.rows else ''}key {self.name!r}, version {self.version}"
