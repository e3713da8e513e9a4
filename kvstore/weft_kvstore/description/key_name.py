"""What a user calls a key, and what the store calls it: strings stay as they are, the number 5 is "#5"."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np

UserKey: TypeAlias = str | int
"""A string, or a number from 0 to 2**64 - 1, which is a key of its own: 5 and "5" are two keys."""

MARK: Final = "#"
"""What names that are no user's strings begin with: those of numbers, and those of the store itself."""

BARRIER_KEY: Final = "#barrier"
"""The key by which slots meet."""

LARGEST: Final = (1 << 64) - 1


def store_name(key: object) -> str:
    """The store's name of a user's key. Raises ValueError for what is no key."""
    if isinstance(key, str):
        if not key:
            raise ValueError("key '': a key has at least one character")
        if key.startswith(MARK):
            raise ValueError(f"key {key!r}: {MARK!r} begins the names of numbers; the key 5 is the number 5 itself")
        return key
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        if not 0 <= int(key) <= LARGEST:
            raise ValueError(f"key {key}: a number from 0 to 2**64 - 1")
        return f"{MARK}{int(key)}"
    raise ValueError(f"key {key!r}: a string or a number, not {type(key).__name__}")


def user_key(name: str) -> UserKey:
    """What the user calls the key of that name."""
    number = name.removeprefix(MARK)
    return int(number) if name != number and number.isdecimal() else name
