"""A place in a JSON document: a value, where it stands, and the checked ways to read it."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from weft_graph.errors import GraphFormatError
from weft_graph.limits import GRAPH_LIMITS, Limits

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters and lone surrogates: the first break listings and logs, the second cannot be encoded."""

_SHOWN_CHARACTERS: Final = 60


def escape_token(token: str) -> str:
    """A key as a token of a JSON pointer (RFC 6901, section 3)."""
    return token.replace("~", "~0").replace("/", "~1")


def shown(value: object) -> str:
    """A short text for any value. Containers are named by kind alone, since their text may be without bound."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
        case float():
            return repr(value)
        case str():
            cut = value[:_SHOWN_CHARACTERS]
            return ascii(cut) if len(cut) == len(value) else f"{cut!a}... of {len(value)} characters"
        case Mapping():
            return "an object"
        case list() | tuple():
            return f"an array of {len(value)}"
    return f"a Python {type(value).__name__}"


@dataclass(frozen=True, slots=True)
class Place:
    """A value inside a JSON document, and its pointer. Its readers raise GraphFormatError with that pointer."""

    value: object
    pointer: str = ""
    limits: Limits = GRAPH_LIMITS

    def error(self, message: str) -> GraphFormatError:
        """An error that says where it is; raise it."""
        return GraphFormatError(f"{self.pointer or 'the document'}: {message}", pointer=self.pointer)

    def expected(self, what: str) -> GraphFormatError:
        return self.error(f"expected {what}, got {shown(self.value)}")

    def _child(self, value: object, token: str | int) -> Place:
        step = escape_token(token) if isinstance(token, str) else str(token)
        return Place(value, f"{self.pointer}/{step}", self.limits)

    def members(self, limit: int) -> dict[str, Place]:
        """The members of an object whose keys are names, at most `limit` of them."""
        if not isinstance(self.value, Mapping):
            raise self.expected("an object")
        if len(self.value) > limit:
            raise self.error(f"{len(self.value)} members, and at most {limit} are allowed")
        for key in self.value:
            self._check_name(key, "a key")
        return {key: self._child(member, key) for key, member in self.value.items()}

    def fields(self, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Place]:
        """The members of an object whose keys are known. Every required one is there, and no other than these."""
        if not isinstance(self.value, Mapping):
            raise self.expected("an object")
        for key in self.value:
            if not isinstance(key, str) or (key not in required and key not in optional):
                raise self.error(f"unknown field {shown(key)}; known are {', '.join((*required, *optional))}")
        for key in required:
            if key not in self.value:
                raise self.error(f"field {key!r} is missing")
        return {key: self._child(member, key) for key, member in self.value.items()}

    def items(self, limit: int) -> list[Place]:
        """The items of an array, at most `limit` of them."""
        if not isinstance(self.value, list | tuple):
            raise self.expected("an array")
        if len(self.value) > limit:
            raise self.error(f"{len(self.value)} items, and at most {limit} are allowed")
        return [self._child(item, index) for index, item in enumerate(self.value)]

    def _check_name(self, value: object, what: str) -> str:
        if not isinstance(value, str):
            raise self.error(f"expected {what}, got {shown(value)}")
        if not 1 <= len(value) <= self.limits.name:
            raise self.error(f"{what} has 1 to {self.limits.name} characters, this one {len(value)}")
        if _UNPRINTABLE.search(value):
            raise self.error(f"{what} has no control characters and no lone surrogates: {shown(value)}")
        return value

    def name(self) -> str:
        """A name: text of bounded length that can be printed and encoded."""
        return self._check_name(self.value, "a name")

    def optional_name(self) -> str:
        """A name, or the empty string for what is left out."""
        return "" if self.value == "" else self.name()

    def text(self) -> str:
        """Text of bounded length that can be encoded, possibly empty."""
        if not isinstance(self.value, str):
            raise self.expected("text")
        if len(self.value) > self.limits.text:
            raise self.error(f"{len(self.value)} characters, and at most {self.limits.text} are allowed")
        if any("\ud800" <= character <= "\udfff" for character in self.value):
            raise self.error("text has no lone surrogates")
        return self.value

    def integer(self, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
        """A whole number within bounds, both included, written without a fraction."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self.expected("an integer")
        if not low <= self.value <= high:
            raise self.expected(f"an integer from {low} to {high}")
        return self.value

    def number(self) -> float:
        """A finite number as a float."""
        if isinstance(self.value, float):
            if not math.isfinite(self.value):
                raise self.expected("a finite number")
            return self.value
        if isinstance(self.value, int) and not isinstance(self.value, bool):
            return float(self.integer())
        raise self.expected("a number")

    def boolean(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.expected("true or false")
        return self.value
