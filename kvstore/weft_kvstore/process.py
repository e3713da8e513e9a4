"""This process and its threads: its identity after a fork, signals, memory, and the waking of a thread that polls."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enums of handlers, which takes ten times as long
import contextlib
import ctypes
import logging
import os
import platform
import resource
import socket
import sys
import threading
from collections.abc import Callable
from signal import SIGINT
from types import FrameType, TracebackType
from typing import Any, Final

from weft_kvstore.errors import StoreError

# --- The process that a store belongs to: its threads are not in what is forked from it -------------------------------


class OwnProcess:
    """Remembers the process that made it."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is still that process, and no child of it."""
        return os.getpid() == self.number

    def check(self) -> None:
        """Raises StoreError in a child: nobody there would ever end a future."""
        if os.getpid() != self.number:
            raise StoreError(
                f"this store belongs to process {self.number}, this is process {os.getpid()}: connect after the fork"
            )


# --- Ctrl-C, kept back while the main thread is in the middle of something --------------------------------------------


MAIN: Final = threading.main_thread().ident
"""Where Python calls the handlers of signals."""

_INTERRUPT: Final = int(SIGINT)


class Interrupts:
    """While it is entered, the handler that SIGINT has in Python is called only during `sleep`, and else at the end. It
    may raise, as CPython's own does. For the main thread alone; where one is entered within another, the outer one's
    end is the end, and its `sleep` that of both.

    It takes the handler's place meanwhile, and leaves alone what is no handler of Python's.
    """

    are_held = False
    """Whether the main thread is in the middle of something, and does not sleep."""

    may_come = False
    _handler: Callable[[int, FrameType | None], Any] | None = None
    _came = False
    _outer = False

    def __enter__(self) -> Interrupts:
        handler = _signal.getsignal(_INTERRUPT)
        if callable(handler):
            self._handler = handler
            _signal.signal(_INTERRUPT, self._hear)
        self._outer = Interrupts.are_held
        Interrupts.are_held = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Interrupts.are_held = self._outer
        self.may_come = False
        handler, self._handler = self._handler, None
        if handler is not None:
            _signal.signal(_INTERRUPT, handler)
            if self._came:
                handler(_INTERRUPT, None)

    def sleep(self, sleep: Callable[..., object], *arguments: object) -> None:
        """Calls it, and lets interrupts through meanwhile."""
        self.may_come = True
        Interrupts.are_held = self._outer
        try:
            if self._came and self._handler is not None:
                self._came = False
                self._handler(_INTERRUPT, None)
            sleep(*arguments)
        finally:
            Interrupts.are_held = True
            self.may_come = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.may_come and self._handler is not None:
            self._handler(number, frame)
        else:
            self._came = True


_OTHER_THREAD: Final = contextlib.nullcontext()


def uninterrupted() -> contextlib.AbstractContextManager[object]:
    """Keeps Ctrl-C back from what this thread does within it, which waits for nothing."""
    return Interrupts() if threading.get_ident() == MAIN and not Interrupts.are_held else _OTHER_THREAD


# --- What a process with a store in it, shard or worker, sets for itself at its start ---------------------------------


SWITCH_INTERVAL_S = 1e-4
"""CPython hands the interpreter to a waiting thread after this long. At its default of 5 ms, a small message waits
that long behind a computing thread."""

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Parameters of mallopt(3), from glibc's malloc.h."""

MMAP_THRESHOLD_BYTES = 32 << 20
"""The most that glibc takes. Arrays below it come from the heap, whose pages stay mapped from one step to the next
instead of being mapped and zeroed by the kernel each time."""

TRIM_THRESHOLD_BYTES = 512 << 20
"""Free memory at the heap's top that is kept for the next step."""

_log = logging.getLogger("weft.store")


def tune_process() -> None:
    """Sets the switch interval, and malloc's thresholds where the C library is glibc."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    for name, parameter, value in (
        ("M_MMAP_THRESHOLD", M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        ("M_TRIM_THRESHOLD", M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
    ):
        if mallopt(parameter, value) != 1:
            _log.warning("malloc does not take %s = %d", name, value)


def resident_bytes() -> int:
    """What this process holds in memory; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as told:
            return int(told.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


# --- Wakes a thread that waits in a poller ----------------------------------------------------------------------------


class Wakeup:
    """A pair of sockets: `wake` from any thread makes `fileno` readable until `clear`, and does nothing once it is
    closed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # A signal's handler may wake while its own thread does.
        self._is_closed = False
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)

    def fileno(self) -> int:
        return self._read.fileno()

    def wake(self) -> None:
        with self._lock:  # A descriptor that is closed meanwhile may be another's by then.
            if self._is_closed:
                return  # Nobody waits any more.
            try:  # noqa: SIM105  # a third of the time
                self._write.send(b"\0")
            except BlockingIOError:
                pass  # It is full of wakes already.

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(self._read.recv(4096)) == 4096:
                pass

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._read.close()
            self._write.close()
