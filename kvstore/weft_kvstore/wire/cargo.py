"""What a client's frame may carry in one run."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Cargo(IntEnum):
    """The wire's numbers for it."""

    GRADIENT = 0
    VALUE = 1
    IDS = 2


class SentEntry(NamedTuple):
    """What a run that a client sends says beside slice numbers: see `messages.Push`."""

    cargo: Cargo
    request: int
    lot: int
    step: int
    chunks: int
    place: bool = False
    """Whether their bytes are in the places of their keys in the client's arena, and may be read there."""
