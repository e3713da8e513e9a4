"""A TCP proxy between a store's client and a shard: paced, recording, able to hold bytes back and to cut the link."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from store_zmtp import ZmtpReader

CHUNK_BYTES = 2048
QUEUED_CHUNKS = 64
"""What the proxy itself may hold in each direction, as a router's queue would: 128 KiB."""

BURST_S = 0.004
WAIT_S = 60.0

Parts = list[bytes]


class TokenBucket:
    """Says how long to wait so that no more than `bytes_per_s` pass, with bursts of `BURST_S`. Time is a parameter."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def wait_s(self, count: int, now: float) -> float:
        """Takes `count` bytes; returns the seconds until they have passed."""
        self._free_at = max(self._free_at, now - BURST_S) + count / self._bytes_per_s
        return max(0.0, self._free_at - now)


class Way:
    """One direction of a proxy: its pace, and the ZeroMQ messages seen at its two ends, all connections together.

    `entered` holds those that the sender's bytes have completed, `arrived` those wholly given to the receiver.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        self.bucket = None if bytes_per_s is None else TokenBucket(bytes_per_s)
        self.entered: list[Parts] = []
        self.arrived: list[Parts] = []
        self.bytes_entered = 0
        """Bytes that the sender's sockets gave, ZeroMQ's framing included."""
        self.flowing = asyncio.Event()
        self._changed = threading.Condition()

    def record(self, seen: list[Parts], messages: list[Parts]) -> None:
        """Adds to `entered` or `arrived`, and wakes who waits for it."""
        if messages:
            with self._changed:
                seen += messages
                self._changed.notify_all()

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits until `holds()`, asked again whenever a message enters or arrives. Fails after `WAIT_S`."""
        with self._changed:
            assert self._changed.wait_for(holds, WAIT_S), f"waited {WAIT_S} s for {what}"


class TcpProxy:
    """Forwards any number of connections to `target`; they share one pace each way: `up` to the shard, and `down`."""

    def __init__(self, target: str, *, bytes_per_s: float | None = None, buffer_bytes: int = 4096) -> None:
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target = (host, int(port))
        self._buffer_bytes = buffer_bytes
        self.up = Way(bytes_per_s)
        self.down = Way(bytes_per_s)
        self._listener = self._socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(16)
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._connected = True
        self._live: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)
        self.connections = 0
        """Connections accepted and forwarded so far."""

    def __enter__(self) -> Self:
        for way in (self.up, self.down):
            way.flowing.set()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._drop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the proxy's thread did not end"
        self._listener.close()
        self._loop.close()

    def cut(self) -> None:
        """Resets every connection, what the proxy holds is lost; new ones are reset too, until `restore`."""
        self._connected = False
        self._call(self._drop())

    def restore(self) -> None:
        """Lets connections through again."""
        self._connected = True

    def hold(self, *ways: Way) -> None:
        """Lets nothing more arrive in these directions; connections stay open and bytes may still enter."""
        self._call(self._set(ways, flowing=False))

    def release(self, *ways: Way) -> None:
        """Ends `hold`."""
        self._call(self._set(ways, flowing=True))

    async def _set(self, ways: tuple[Way, ...], *, flowing: bool) -> None:
        for way in ways:
            if flowing:
                way.flowing.set()
            else:
                way.flowing.clear()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def _run(self) -> None:
        accepting = self._loop.create_task(self._accept())
        self._loop.run_forever()
        accepting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(accepting)

    async def _accept(self) -> None:
        self._listener.setblocking(False)
        while True:
            near, _ = await self._loop.sock_accept(self._listener)
            if not self._connected:
                _reset(near)
                continue
            self.connections += 1
            task = self._loop.create_task(self._serve(near, self._socket()))
            self._live.add(task)
            task.add_done_callback(self._live.discard)

    async def _serve(self, near: socket.socket, far: socket.socket) -> None:
        near.setblocking(False)
        far.setblocking(False)
        try:
            await self._loop.sock_connect(far, self._target)
            async with asyncio.TaskGroup() as group:
                for source, sink, way in ((near, far, self.up), (far, near, self.down)):
                    queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUED_CHUNKS)
                    group.create_task(self._enter(source, queue, way))
                    group.create_task(self._deliver(queue, sink, way))
        except* OSError:
            pass  # a connection that ends, ends for both sides: closed below
        finally:
            _reset(near)
            _reset(far)

    async def _enter(self, source: socket.socket, queue: asyncio.Queue[bytes], way: Way) -> None:
        reader = ZmtpReader()
        while data := await self._loop.sock_recv(source, CHUNK_BYTES):
            way.bytes_entered += len(data)
            await queue.put(data)
            way.record(way.entered, reader.feed(data))
        raise ConnectionResetError("the source closed")

    async def _deliver(self, queue: asyncio.Queue[bytes], sink: socket.socket, way: Way) -> None:
        reader = ZmtpReader()
        while True:
            data = await queue.get()
            if way.bucket is not None:
                await asyncio.sleep(way.bucket.wait_s(len(data), self._loop.time()))
            await way.flowing.wait()
            await self._loop.sock_sendall(sink, data)
            way.record(way.arrived, reader.feed(data))

    async def _drop(self) -> None:
        live = list(self._live)
        for task in live:
            task.cancel()
        await asyncio.gather(*live, return_exceptions=True)

    def _socket(self) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            made.setsockopt(socket.SOL_SOCKET, option, self._buffer_bytes)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made


def _reset(connection: socket.socket) -> None:
    """Closes at once; the peer sees a reset, as when a machine loses its state."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    connection.close()
