"""Slots of a job that flood its shard, each in its way, on a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import zmq

from store_cluster import WAIT_S
from store_raw import RawPeer, hello_of, pull_of, push_of
from weft_kvstore.arrays import Buffer
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.wire.codec import decode_reply, encode
from weft_kvstore.wire.messages import Acknowledge, Ping, Values, Welcome

SLICE = 1 << 16
"""Bytes of a slice of the first key, which they contribute to."""

SLICES = 16

Say = Callable[[int], list[Buffer]]
"""The next message of a link, by how many it has said."""


def pushes(number: int) -> list[Buffer]:
    """Gradients of whole steps, one after the other."""
    step = number + 1
    return encode(push_of(0, [SLICES * SLICE], frame=step, step=number, count=SLICES), bytes(SLICES * SLICE))


def small_pushes(number: int) -> list[Buffer]:
    """One slice of 64 KiB after the other."""
    step, at = divmod(number, SLICES)
    return encode(push_of(0, [SLICE], frame=number + 1, step=step, first=at), bytes(SLICE))


def pulls(number: int) -> list[Buffer]:
    """All values, again and again."""
    return encode(pull_of(number + 1, 0, 0, count=SLICES))


def pings(number: int) -> list[Buffer]:
    return encode(Ping())


def nonsense(number: int) -> list[Buffer]:
    """What is no message: its link is forgotten, and goes on."""
    return [b"nonsense", bytes(10)]


class Flood:
    """DEALERs of all slots but the first, that say all they can and acknowledge what they hear; `said` counts it."""

    def __init__(self, description: StoreDescription, say: Say) -> None:
        self.said = 0
        self._description = description
        self._say = say
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._links = [self._link(slot) for slot in range(1, description.slots)]
        self._counts = [count() for _ in self._links]
        self._unsaid: list[list[Buffer] | None] = [None] * len(self._links)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        for socket in self._links:
            socket.close(0)
        self._context.term()

    def _link(self, slot: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.SNDHWM, 100)
        socket.connect(self._description.shards[0])
        assert isinstance(RawPeer(socket).greet(hello_of(self._description, slot, incarnation=1)), Welcome)
        return socket

    def _run(self) -> None:
        while not self._stop.is_set():
            if not sum(self._turn(number, socket) for number, socket in enumerate(self._links)):
                self._stop.wait(0.001)  # Every link is full: the shard's turn.

    def _turn(self, number: int, socket: zmq.Socket[bytes]) -> bool:
        while socket.poll(0):
            reply = decode_reply(socket.recv_multipart())[0]
            if isinstance(reply, Values):
                socket.send_multipart(encode(Acknowledge([reply.frame])))
        message = self._unsaid[number] or self._say(next(self._counts[number]))
        try:
            socket.send_multipart(message, zmq.NOBLOCK)
        except zmq.Again:
            self._unsaid[number] = message
            return False
        self._unsaid[number] = None
        self.said += 1
        return True


@contextmanager
def flooding(description: StoreDescription, say: Say) -> Iterator[Flood]:
    flood = Flood(description, say)
    try:
        yield flood
    finally:
        flood.close()
