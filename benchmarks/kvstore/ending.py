"""How a benchmark ends before its time: every context is left, so that no process stays behind."""

from __future__ import annotations

import signal
import sys
from typing import Protocol


class Screen(Protocol):
    def print(self, text: str, /) -> None: ...


def end_on_sigterm() -> None:
    """From now on the signal ends the main thread as an exit does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def stopped(screen: Screen) -> int:
    """Says that the user has stopped it; the exit code."""
    screen.print("stopped; no process is left")
    return 128 + signal.SIGINT
