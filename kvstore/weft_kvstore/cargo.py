"""What a client's frame may carry in one run."""

from __future__ import annotations

from enum import IntEnum


class Cargo(IntEnum):
    """The wire's numbers for it."""

    GRADIENT = 0
    VALUE = 1
    IDS = 2
