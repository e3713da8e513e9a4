"""How many Python functions are called: what a computation costs, on any machine and under any load."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Calls:
    count: int = 0
    """Of Python functions and generators, in this thread, and of functions written in C that these call."""


@contextmanager
def counted_calls() -> Iterator[Calls]:
    calls, before = Calls(), sys.getprofile()

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            calls.count += 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(before)
