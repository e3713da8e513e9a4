"""Whether a daemon hangs, for whoever restarts those that do: a file that is touched while its work goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

HANGS_AFTER_S: Final = 60.0
"""A thread that has not come round for so long hangs: nobody waits longer for one answer of the store."""

Lives = Callable[[], bool]

_log = logging.getLogger("weft.alive")


class AliveFile:
    """Touched on the thread of a heartbeat, which proves nothing itself: only while `lives` says that work goes on."""

    def __init__(self, path: Path, lives: Lives) -> None:
        self._path = path
        self._lives = lives
        self._told = False

    def touch(self) -> None:
        """Never raises OSError: a file that cannot be touched grows old, and that is what it is for."""
        if not self._lives():
            self._warn(f"this daemon's work stands still; {self._path} is left to grow old")
            return
        try:
            self._path.touch()
        except OSError as error:
            self._warn(f"{self._path} cannot be touched: {error}")
        else:
            self._told = False

    def _warn(self, message: str) -> None:
        if not self._told:
            _log.error("%s", message)
        self._told = True


class Question:
    """Asks a thread that takes things from a queue whether it still does. `ask` puts something there that makes it call
    `answer`. Asked and answered on different threads."""

    def __init__(
        self, ask: Callable[[], None], *, limit_s: float = HANGS_AFTER_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._limit_s = limit_s
        self._clock = clock
        self._asked_at: float | None = None

    def lives(self) -> bool:
        """Whether no question waits for longer than the limit; asks one where none waits."""
        asked_at, now = self._asked_at, self._clock()
        if asked_at is None:
            self._asked_at = now
            self._ask()
            return True
        return now - asked_at < self._limit_s

    def answer(self) -> None:
        """The question has come to its turn."""
        self._asked_at = None
