"""Wakes a thread that waits in a poller."""

from __future__ import annotations

import socket


class Wakeup:
    """A pair of sockets: `wake` from any thread makes `fileno` readable until `clear`."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)

    def fileno(self) -> int:
        return self._read.fileno()

    def wake(self) -> None:
        try:
            self._write.send(b"\0")
        except BlockingIOError:
            pass  # It is full of wakes already.
        except OSError:
            if self._write.fileno() >= 0:
                raise  # Closed meanwhile: nobody waits any more.

    def clear(self) -> None:
        try:
            while len(self._read.recv(4096)) == 4096:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._read.close()
        self._write.close()
