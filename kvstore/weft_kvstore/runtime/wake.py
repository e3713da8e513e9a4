"""Wakes a thread that waits in a poller."""

from __future__ import annotations

import contextlib
import socket
import threading


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
