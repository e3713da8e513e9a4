"""This process: its identity after a fork, what it sets at its start, memory, ZeroMQ, waking a thread, callbacks."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import platform
import resource
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Final

import zmq

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


# --- What a process with a store in it, shard or worker, sets for itself at its start ---------------------------------


SWITCH_INTERVAL_S = 2e-5
"""How long a thread keeps the interpreter while another waits for it; the kernel's timers add to it. A small message
waits for a computing thread several times. At CPython's 5 ms its round trip takes some 20 ms, at 0.1 ms half
as long again as beside an idle one. Threads that compute lose about 1 %."""

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
    """Sets the switch interval, and malloc's thresholds where the C library is glibc. The garbage collector leaves out
    what exists by then, modules above all: to look at it takes 20 ms, again and again."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()
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
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


# --- What the kernel knows of a TCP connection: whether a long message is still arriving, over a slow network ---------


TCP_INFO: Final = getattr(socket, "TCP_INFO", None)
"""None where the system is not Linux."""

MOVES_BYTES: Final = 1 << 12
"""If so many bytes have come, a long message is under way: pings are shorter."""

_tcp_info: Final = struct.Struct("=128xQ")
"""`tcpi_bytes_received`."""


@contextlib.contextmanager
def opened_again(fd: int) -> Iterator[socket.socket]:
    """The socket of this descriptor, which may be another file's by now, or none's: then OSError is raised."""
    copy = os.dup(fd)
    try:
        found = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with found:
        yield found


def received_bytes(fd: int) -> int:
    """The bytes that have come on a connection, those of messages that have not ended included; 0 if the system does
    not tell."""
    if TCP_INFO is None:
        return 0
    try:
        with opened_again(fd) as connection:
            (received,) = _tcp_info.unpack(connection.getsockopt(socket.IPPROTO_TCP, TCP_INFO, _tcp_info.size))
    except (OSError, struct.error):  # It is closed by now, is no TCP, or the kernel is an old one.
        return 0
    return int(received)


# --- ZeroMQ, which ends the process where it lacks descriptors --------------------------------------------------------


# Plain numbers, as arithmetic on pyzmq's flags is slow.
NOW: Final = int(zmq.NOBLOCK)
MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
READABLE: Final = int(zmq.POLLIN)
EVENTS: Final = int(zmq.EVENTS)

ZEROMQ_DESCRIPTORS: Final = 20
"""What a context takes, and the thread by which pyzmq learns that a message has left which it did not copy."""

_FIRST_FRAME: Final = threading.Lock()
"""Threads that start pyzmq's thread at the same time would wait for one another for ever."""

os.register_at_fork(
    before=_FIRST_FRAME.acquire, after_in_parent=_FIRST_FRAME.release, after_in_child=_FIRST_FRAME.release
)


def zeromq_context() -> zmq.Context[zmq.Socket[bytes]]:
    """A new context. pyzmq's thread runs then; it would start with the first message that is not copied, when no
    descriptor may be left. Raises StoreError where there are too few now."""
    spare: list[int] = []
    try:
        for _ in range(ZEROMQ_DESCRIPTORS):
            spare.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise StoreError(f"ZeroMQ needs {ZEROMQ_DESCRIPTORS} file descriptors more: {error}") from error
    finally:
        for one in spare:
            os.close(one)
    with _FIRST_FRAME:
        zmq.Frame(b"", copy=False)
    return zmq.Context()


# --- Wakes a thread that waits in a poller ----------------------------------------------------------------------------


class Wakeup:
    """A count of the kernel's: `wake` from any thread makes `fileno` readable until `clear`. The descriptor is closed
    with the object, so that whoever may wake never finds another file's in its place."""

    _fd = -1

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def wake(self) -> None:
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # As the interpreter ends, this module may have lost `os`.
        if self._fd >= 0:
            close(self._fd)


# --- A thread for callbacks, which are the user's ---------------------------------------------------------------------


IDLE_S: Final = 0.05
"""How long the thread waits for further callbacks before it ends. A program whose last callback has just run ends that
much later."""


class Callbacks:
    """Runs the callbacks of futures that have ended, one after the other, on a thread of their own, which begins when
    there are some. Python waits for it before the program ends. No lock is waited for: a signal's handler may come at
    any time, and may end futures too."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ended: SimpleQueue[Any] = SimpleQueue()
        self._running = threading.Lock()

    def add(self, future: Any) -> None:
        """The future has ended. If the process can start no thread, its callbacks run with those of the next one."""
        self._ended.put(future)
        if not self._running.locked():
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._run, name=self._name, daemon=False).start()

    def _run(self) -> None:
        while not self._ended.empty() and self._running.acquire(blocking=False):
            try:
                while True:
                    future = self._ended.get(timeout=IDLE_S)
                    try:
                        future._invoke_callbacks()
                    except BaseException:  # noqa: BLE001  # What is no Exception, as SystemExit, ends this one alone.
                        _log.exception("a callback of %r failed", future)
            except Empty:
                pass
            finally:
                self._running.release()
