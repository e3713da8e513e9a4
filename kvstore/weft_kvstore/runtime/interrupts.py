"""Ctrl-C, kept back while the main thread is in the middle of something."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enums of handlers, which takes ten times as long
import threading
from collections.abc import Callable
from signal import SIGINT
from types import FrameType, TracebackType
from typing import Any, Final

MAIN: Final = threading.main_thread().ident
"""Where Python calls the handlers of signals."""

_INTERRUPT: Final = int(SIGINT)


class Interrupts:
    """While it is entered, the handler that SIGINT has in Python is called only during `sleep`, and else at the end. It
    may raise, as CPython's own does. For the main thread alone; entered once.

    It takes the handler's place meanwhile, and leaves alone what is no handler of Python's.
    """

    __slots__ = ("_came", "_handler", "may_come")

    def __init__(self) -> None:
        self.may_come = False
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._came = False

    def __enter__(self) -> Interrupts:
        handler = _signal.getsignal(_INTERRUPT)
        if callable(handler):
            self._handler = handler
            _signal.signal(_INTERRUPT, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.may_come = False
        handler, self._handler = self._handler, None
        if handler is None:
            return
        _signal.signal(_INTERRUPT, handler)
        if self._came:
            handler(_INTERRUPT, None)

    def sleep(self, sleep: Callable[[], object]) -> None:
        """Calls it, and lets interrupts through meanwhile."""
        self.may_come = True
        try:
            if self._came and self._handler is not None:
                self._came = False
                self._handler(_INTERRUPT, None)
            sleep()
        finally:
            self.may_come = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.may_come and self._handler is not None:
            self._handler(number, frame)
        else:
            self._came = True
