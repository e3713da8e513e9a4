"""How many connections a shard's socket has of peers that it does not know."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

MOST_UNKNOWN: Final = 256
"""Connections that may be open at a time on which no Hello was welcomed. A client says Hello once it is connected, so
the one that has been silent for longest is closed for one more. They are never more than a quarter of the descriptors
that the process may have."""

UNKNOWN_S: Final = 10.0
"""Such a connection is closed after so long. ZeroMQ closes it earlier where its handshake does not end."""

_TICK_MS: Final = 1000
_ENDED: Final = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_WATCHED: Final = zmq.EVENT_ACCEPTED | _ENDED | zmq.EVENT_ACCEPT_FAILED | zmq.EVENT_MONITOR_STOPPED

_log = logging.getLogger("weft.shard")


class UnknownPeers:
    """Closes connections of a bound `router` on which no Hello was welcomed, where they are too many or too old. It has
    a thread of its own; a call costs the shard nothing."""

    def __init__(
        self, router: zmq.Socket[bytes], *, most: int = MOST_UNKNOWN, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._router = router
        self._most = min(most, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._clock = clock
        self._said: deque[tuple[int, bool]] = deque()
        """Of which descriptors the shard has said that they are a client's, or are none's any more."""
        self._open: set[int] = set()
        self._since: dict[int, float] = {}
        """Since when each open descriptor is no client's, the oldest first."""
        self._closed = 0
        self._monitor = router.get_monitor_socket(_WATCHED)
        address = router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._port = int(address.rsplit(":", 1)[1]) if address.startswith("tcp://") else None
        self._thread = threading.Thread(target=self._run, name="weft-unknown-peers", daemon=True)
        self._thread.start()

    def welcome(self, fd: int) -> None:
        """The connection with this file descriptor is a client's."""
        self._said.append((fd, True))

    def forget(self, fd: int) -> None:
        """It is a client's no more. It may be closed by now."""
        self._said.append((fd, False))

    def close(self) -> None:
        """Ends the thread. Before the router is closed."""
        self._router.disable_monitor()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(self._monitor):
            while True:
                self._monitor.poll(_TICK_MS)
                said = [self._said.popleft() for _ in range(len(self._said))]
                while self._monitor.poll(0):  # That these connections were accepted is among what is read now.
                    event = recv_monitor_message(self._monitor)
                    if event["event"] == zmq.EVENT_MONITOR_STOPPED:
                        return
                    self._take(event["event"], event["value"])
                for fd, is_client in said:
                    self._since.pop(fd, None)
                    if not is_client and fd in self._open:
                        self._since[fd] = self._clock()
                old = self._clock() - UNKNOWN_S
                for fd in [each for each, since in self._since.items() if since < old]:
                    self._shut(fd)
                while len(self._since) > self._most:
                    self._shut(next(iter(self._since)))

    def _take(self, event: int, fd: int) -> None:
        if event == zmq.EVENT_ACCEPT_FAILED:  # No file descriptor is left, say: half of them are closed.
            for each in list(self._since)[: (len(self._since) + 1) // 2]:
                self._shut(each)
            return
        self._since.pop(fd, None)
        self._open.discard(fd)
        if event == zmq.EVENT_ACCEPTED:
            self._open.add(fd)
            self._since[fd] = self._clock()

    def _shut(self, fd: int) -> None:
        """Shuts the connection down; ZeroMQ then closes it. Its number may be another file's by now."""
        self._since.pop(fd, None)
        self._open.discard(fd)
        self._closed += 1
        if self._closed & (self._closed - 1) == 0:  # The 1st, 2nd, 4th, ...: a flood does not fill the log.
            _log.warning("%d connections were closed that are no client's", self._closed)
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
            if self._port is None or connection.getsockname()[1] == self._port:
                connection.shutdown(socket.SHUT_RDWR)
