"""A link of a given speed as a process: `python paced_proxy.py LINK`, with a `ProxiedLink` as JSON.

It relays TCP connections, and every byte of one direction passes one token bucket. It needs no rights and no network
interface, and hides no queue: what it holds of one direction of a connection, its sockets' buffers among them, is some
48 KiB at 100 Mbit/s and 80 KiB at 1 Gbit/s. The rest stays with the sender.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

DEPTH_BYTES: Final = 64 << 10
"""What a link that was late may send at once: a process that sleeps wakes some 0.1 ms late, and the rate must hold."""


@dataclass(slots=True)
class Pacer:
    """A token bucket, kept as the moment at which all that was handed to the link has left it."""

    bytes_per_s: float
    depth_bytes: int = DEPTH_BYTES
    _free_at: float = float("-inf")

    def leave(self, nbytes: int, now: float) -> float:
        """Hands bytes to the link; returns the moment at which the last of them has left it."""
        earliest = now - self.depth_bytes / self.bytes_per_s
        self._free_at = max(self._free_at, earliest) + nbytes / self.bytes_per_s
        return self._free_at


BUFFER_TIME_S: Final = 2e-4
"""Of the link, for the buffer of a socket: with less than 24 KiB at 1 Gbit/s, the relay itself was the slower one."""
MIN_BUFFER_BYTES: Final = 8 << 10
MAX_BUFFER_BYTES: Final = 24 << 10
SEGMENT_BYTES: Final = 16 << 10
"""Loopback's 64 KiB do not fit into so small a window: the sender would wait for its timers."""
PIECE_BYTES: Final = 32 << 10
"""Read, paced and sent in one go, at most; a buffer has less at most times."""
BACKLOG: Final = 64
SHORTEST_SLEEP_S: Final = 5e-5

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Route:
    """Connections to `listen` are relayed to `target`.

    What the one who connects sends goes `up` or down the link, and the answers the other way; a route that is not
    `paced` is beside the link. `replace` are pairs of texts of one length: the first becomes the second on the way to
    the target.
    """

    listen: Address
    target: Address
    up: bool = True
    paced: bool = True
    replace: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ProxiedLink:
    """The speed in each direction, and what passes the link."""

    bits_per_s: float
    routes: tuple[Route, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def link_from_json(text: str) -> ProxiedLink:
    fields = json.loads(text)
    routes = [
        Route(tuple(route["listen"]), tuple(route["target"]), route["up"], route["paced"], _pairs(route["replace"]))
        for route in fields["routes"]
    ]
    return ProxiedLink(fields["bits_per_s"], tuple(routes))


class PacedDirection:
    """One direction of the link, which all of its connections share."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer, self._lock = pacer, threading.Lock()

    def wait(self, nbytes: int) -> None:
        """Returns when so many bytes have passed."""
        with self._lock:
            until = self._pacer.leave(nbytes, time.monotonic())
        if (left := until - time.monotonic()) > SHORTEST_SLEEP_S:
            time.sleep(left)


class PacedProxy:
    """Serves the link's routes on threads of its own, from the moment it is made until `close`.

    Raises OSError where it cannot listen.
    """

    def __init__(self, link: ProxiedLink) -> None:
        bytes_per_s = link.bits_per_s / 8
        self._buffer_bytes = min(max(int(bytes_per_s * BUFFER_TIME_S), MIN_BUFFER_BYTES), MAX_BUFFER_BYTES)
        self._directions = {up: PacedDirection(Pacer(bytes_per_s)) for up in (True, False)}
        self._closed = False
        self._sockets: list[socket.socket] = []
        for route in link.routes:
            listening = _small(self._buffer_bytes)
            self._sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind(route.listen)
            except OSError:
                self.close()
                raise
            listening.listen(BACKLOG)
            _on_thread(lambda route=route, listening=listening: self._accept(route, listening))

    def close(self) -> None:
        self._closed = True
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, route: Route, listening: socket.socket) -> None:
        while not self._closed:
            try:
                near = listening.accept()[0]
            except OSError:  # It was closed.
                return
            far = _small(self._buffer_bytes)
            self._sockets += [near, far]
            try:
                far.connect(route.target)
            except OSError:  # Nobody listens yet: as if the route itself did not.
                near.close()
                continue
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            there = self._directions[route.up] if route.paced else None
            back = self._directions[not route.up] if route.paced else None
            pairs = [(old.encode(), new.encode()) for old, new in route.replace]
            _on_thread(lambda near=near, far=far, there=there, pairs=pairs: _relay(near, far, there, pairs))
            _on_thread(lambda near=near, far=far, back=back: _relay(far, near, back, []))


def _relay(
    source: socket.socket, sink: socket.socket, direction: PacedDirection | None, pairs: list[tuple[bytes, bytes]]
) -> None:
    """Passes on what comes until one side ends; then ends the other."""
    piece = bytearray(PIECE_BYTES)
    with contextlib.suppress(OSError):
        while count := source.recv_into(piece):
            if direction is not None:
                direction.wait(count)
            sent: bytes | memoryview = memoryview(piece)[:count]
            for old, new in pairs:
                if piece.find(old, 0, count) >= 0:
                    sent = bytes(sent).replace(old, new)
            sink.sendall(sent)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _small(buffer_bytes: int) -> socket.socket:
    """A socket with small buffers. Set before it listens or connects: the window's scale follows from them then."""
    made = socket.socket()
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        made.setsockopt(socket.SOL_SOCKET, option, buffer_bytes)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    return made


def _on_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()


def _pairs(found: list[list[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((old, new) for old, new in found)


def main(text: str) -> None:
    proxy = PacedProxy(link_from_json(text))
    sys.stdin.read()  # Its end is ours.
    proxy.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
