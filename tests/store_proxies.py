"""A TCP proxy between a store's client and a shard: it keeps what passes, and can cut the link."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from types import TracebackType
from typing import Self

WAIT_S = 60.0


class TcpProxy:
    """Forwards any number of connections to `target`. `up` has each byte that went to the shard, `down` to clients.
    `rate`: bytes that pass each second, each way."""

    def __init__(self, target: str, rate: float = math.inf) -> None:
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target = (host, int(port))
        self._rate = rate
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.up, self.down = bytearray(), bytearray()
        self.flows = threading.Event()
        """While it is not set, nothing more passes to the shard."""
        self.flows.set()
        self._lock = threading.Lock()
        self._is_open = True
        self._live: list[tuple[socket.socket, threading.Thread]] = []
        self._thread = threading.Thread(target=self._accept, name="tcp-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        _end(self._listener)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the proxy's thread did not end"
        self._listener.close()

    def cut(self) -> None:
        """Ends every connection, and each new one until `restore`."""
        self.flows.set()
        with self._lock:
            self._is_open = False
            for near, thread in self._live:
                _end(near)
                thread.join(WAIT_S)
            self._live = []

    def wait_ended(self) -> None:
        """Until the clients have ended all connections, and what they have sent has passed."""
        for _, thread in self._live:
            thread.join(WAIT_S)

    def restore(self) -> None:
        """Lets connections through again."""
        with self._lock:
            self._is_open = True

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                with self._lock:
                    if not self._is_open:
                        near.close()
                        continue
                    thread = threading.Thread(target=self._serve, args=(near,), daemon=True)
                    thread.start()
                    self._live.append((near, thread))

    def _serve(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError), socket.create_connection(self._target) as far:
            back = threading.Thread(target=_forward, args=(far, near, self.down, self._rate))
            back.start()
            _forward(near, far, self.up, self._rate, self.flows)
            back.join(WAIT_S)


def _forward(
    source: socket.socket, sink: socket.socket, seen: bytearray, rate: float, flows: threading.Event | None = None
) -> None:
    """Until one of them ends; then both do."""
    pause = threading.Event()
    with contextlib.suppress(OSError):
        sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := source.recv(1 << 16):
            seen += data
            if flows is not None:
                flows.wait(WAIT_S)
            if rate < math.inf:
                pause.wait(len(data) / rate)
            sink.sendall(data)
    _end(source)
    _end(sink)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
