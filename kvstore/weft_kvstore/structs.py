"""Readers of msgspec's structs, the only ones of the store. Pure.

msgspec works the fields of a type out when it first reads one, and two threads that make it do so at once crash the
process. So a reader is made while its module is imported, which one thread does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Reader(Generic[T]):
    """Reads structs of a type, or of one of several: from MessagePack, from JSON, or from dictionaries, lists, strings
    and numbers. Any thread may use it. All raise msgspec.ValidationError for what does not fit."""

    __slots__ = ("_kind", "from_json", "from_msgpack")

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self.from_msgpack: Callable[[Any], T] = msgspec.msgpack.Decoder(kind).decode
        self.from_json: Callable[[Any], T] = msgspec.json.Decoder(kind).decode

    def from_builtins(self, document: object) -> T:
        found: T = msgspec.convert(document, self._kind)
        return found


documents: Final[Reader[Any]] = Reader(Any)
"""Reads what has no type."""
