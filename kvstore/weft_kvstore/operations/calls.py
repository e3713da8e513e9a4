"""What a caller has asked of a store, once it was checked. `place` is the key's place in the description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from weft_kvstore.arrays.array import Array
from weft_kvstore.operations.key_set import KeySet
from weft_kvstore.wire.cargo import Cargo
from weft_kvstore.wire.messages import Reading

_CALLS: Final = {Cargo.GRADIENT: ("push", "step"), Cargo.VALUE: ("set", "version")}


@dataclass(frozen=True, slots=True)
class Sent:
    """A gradient of a step, or a value to be set at a version, of some rows of a table."""

    cargo: Cargo
    name: str
    place: int
    step: int
    priority: int
    rows: bool = False

    @property
    def places(self) -> tuple[int, ...]:
        return (self.place,)

    def __str__(self) -> str:
        call, step = _CALLS[self.cargo]
        return f"{call} of {'rows of ' if self.rows else ''}key {self.name!r}, {step} {self.step}"


@dataclass(frozen=True, slots=True)
class SentKeys:
    """Gradients of a step, or values to be set at a version, of some keys."""

    cargo: Cargo
    keys: KeySet
    step: int

    @property
    def places(self) -> tuple[int, ...]:
        return self.keys.places

    def __str__(self) -> str:
        call, step = _CALLS[self.cargo]
        return f"{call} of {self.keys}, {step} {self.step}"


class Gives(Enum):
    """What a pull of keys ends with: the one key's value, its state by name, a list of values, or `Pulled`."""

    VALUE = "value"
    STATE = "state"
    VALUES = "values"
    VERSIONS = "versions"


@dataclass(frozen=True, slots=True)
class AskedKeys:
    """Values of some keys at a version, or the rule's state of one: `names` are its arrays, None for the value."""

    keys: KeySet
    version: int
    names: tuple[str, ...] | None
    reading: Reading
    gives: Gives

    @property
    def places(self) -> tuple[int, ...]:
        return self.keys.places

    @property
    def array_count(self) -> int:
        """Arrays of each key."""
        return 1 if self.names is None else len(self.names)

    def __str__(self) -> str:
        what = "pull" if self.names is None else "pull of the state"
        exactly = " exactly" if self.reading is Reading.EXACT else ""
        return f"{what} of {self.keys}, version {self.version}{exactly}"


@dataclass(frozen=True, slots=True)
class Asked:
    """Rows of a table at a version, or the rule's state: `names` are its arrays, None for the value itself."""

    name: str
    place: int
    version: int
    names: tuple[str, ...] | None
    settled: bool
    priority: int
    rows: bool = False

    @property
    def places(self) -> tuple[int, ...]:
        return (self.place,)

    @property
    def reading(self) -> Reading:
        return Reading.SETTLED if self.settled else Reading.OWN

    @property
    def array_count(self) -> int:
        return 1 if self.names is None else len(self.names)

    def named(self, arrays: Sequence[Array]) -> Array | Mapping[str, Array]:
        """The arrays, as the caller gets them."""
        return arrays[0] if self.names is None else dict(zip(self.names, arrays, strict=True))

    def __str__(self) -> str:
        what = "pull" if self.names is None else "pull of the state"
        return f"{what} of {'rows of ' if self.rows else ''}key {self.name!r}, version {self.version}"
