"""A document on its way to the server, made piece by piece so that it is never whole in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Document:
    """`pieces` begins the document anew each time it is called; the pieces have `size` bytes together."""

    size: int
    pieces: Callable[[], Iterator[bytes]]

    @staticmethod
    def of(whole: bytes) -> Document:
        """One that is there already."""
        return Document(len(whole), lambda: iter((whole,)))
