"""Parsing Python's literals and sources while other threads parse, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any, Final, TypeVar

T = TypeVar("T")

TRIES: Final = 20
"""How often something is parsed at most."""


def parsed(parse: Callable[[], T]) -> T:
    """What `parse` returns, which calls `ast.parse`, as `ast.literal_eval` and NumPy's readers of `.npy` headers do.

    It is tried again where CPython mixes up the depths of what two threads parse at once: until 3.13 they are counted
    in one place, and a garbage collection in the middle lets another thread in (SystemError, gh-106905).
    """
    for _ in range(TRIES - 1):
        try:
            return parse()
        except SystemError:
            continue
    return parse()


def parsed_header(read: Callable[..., T], file: IO[Any], **options: Any) -> T:
    """What `read`, one of NumPy's readers of `.npy` headers, returns of the file from where it stands."""
    start = file.tell()

    def again() -> T:
        file.seek(start)
        return read(file, **options)

    return parsed(again)
