"""Peers that speak to a shard by hand: a ZeroMQ DEALER that sends any parts, and the opening of a ZMTP connection."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import zmq

from weft_kvstore.arrays import Buffer
from weft_kvstore.description.check import digest
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.wire.codec import decode_reply, encode
from weft_kvstore.wire.messages import (
    NO_REQUEST,
    Barrier,
    Cancel,
    Done,
    Hello,
    Message,
    Pull,
    Push,
    Refused,
    Reply,
    Values,
    Welcome,
)

HEAR_S = 60.0

ZMTP_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
ZMTP_READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"

_R = TypeVar("_R", bound=Reply)


class RawPeer:
    """A DEALER connected to a shard. It sends what it is told to and hears what the shard answers."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket

    def send(self, parts: Sequence[Buffer]) -> None:
        """One ZeroMQ message of any parts."""
        self._socket.send_multipart(parts)

    def say(self, message: Message, payload: Buffer | None = None) -> None:
        """A message of the protocol, true or not."""
        self.send(encode(message, payload))

    def hear(self, kind: type[_R]) -> _R:
        """The next answer of this kind; others before it are passed over. Fails after `HEAR_S`."""
        until = time.monotonic() + HEAR_S
        while (left_ms := (until - time.monotonic()) * 1000) > 0:
            if self._socket.poll(int(left_ms) + 1):
                reply = decode_reply(self._socket.recv_multipart())[0]
                if isinstance(reply, kind):
                    return reply
        raise AssertionError(f"the shard did not say {kind.__name__} within {HEAR_S} s")

    def wait_until_read(self) -> None:
        """Returns once the shard has taken in all that was said. A Pong does not tell that: the shard says one unasked
        where bytes come, and no message of another number, as where they are not counted."""
        self.say(Barrier(NO_REQUEST, 0, []))
        self.hear(Done)

    def greet(self, hello: Hello) -> Welcome | Refused:
        """Says Hello and returns what the shard makes of it. Nothing of an earlier connection is wanted any more."""
        self.say(hello)
        answer: Welcome | Refused = self.hear(Welcome | Refused)  # type: ignore[arg-type]  # isinstance takes a union
        if isinstance(answer, Welcome):
            self.say(Cancel([NO_REQUEST]))
        return answer


@contextmanager
def raw_peer(endpoint: str) -> Iterator[RawPeer]:
    """A peer that is gone, with all it has sent, at the end."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(endpoint)
        yield RawPeer(socket)


SENT = ("payload_kind", "request", "bucket", "step", "chunks", "first", "count", "nbytes")
ANSWERED = ("request", "array", "bucket", "version", "compressed", "first", "count", "nbytes")
"""The fields of a row of a Push, and of Values."""


def row_of(names: Sequence[str], **fields: int) -> tuple[Any, ...]:
    """A row of a message, 0 where nothing is said, and one slice where no count is."""
    flags = {"compressed"}
    fields = {"count": 1, **fields}
    assert fields.keys() <= {*names}
    return tuple(bool(fields.get(name, 0)) if name in flags else fields.get(name, 0) for name in names)


def column(message: Push | Values, name: str) -> list[Any]:
    """One field of all rows of a message."""
    names = SENT if isinstance(message, Push) else ANSWERED
    return [row[names.index(name)] for row in message.segments]


def changed_rows(message: Any, *changes: dict[str, int], **others: Any) -> Any:
    """The same message, with changed fields in its rows, those of `changes[i]` in row i, and other fields."""
    names = SENT if isinstance(message, Push) else ANSWERED
    rows = [
        row_of(names, **{**dict(zip(names, row, strict=True)), **some})
        for row, some in zip(message.segments, changes or [{}] * len(message.segments), strict=True)
    ]
    return msgspec.structs.replace(message, segments=rows, **others)


def values_of(frame: int, *rows: dict[str, int], **others: Any) -> Values:
    return Values(frame, [row_of(ANSWERED, **row) for row in rows], **others)


def pull_of(
    request: int,
    bucket: int,
    version: int,
    *,
    state: int = 0,
    reading: int = 0,
    first: int = 0,
    count: int = 1,
    chunks: int = 0,
    compressed: int = 0,
) -> Pull:
    """One pull."""
    segments = [(bucket, first, count, chunks)]
    return Pull([(request, version, bool(state), reading, bool(compressed), segments)])  # type: ignore[list-item]  # a Reading, or none


def push_of(
    bucket: int,
    nbytes: Sequence[int],
    *,
    frame: int = 1,
    first: int | Sequence[int] = 0,
    **fields: int,
) -> Push:
    """A segment of each of these lengths, all of one bucket; `first` is that of each segment."""
    firsts = [first] * len(nbytes) if isinstance(first, int) else first
    rows = zip(firsts, nbytes, strict=True)
    return Push(frame, [row_of(SENT, bucket=bucket, first=one, nbytes=size, **fields) for one, size in rows])


def hello_of(description: StoreDescription, slot: int, *, incarnation: int = 1) -> Hello:
    """A Hello that the description's shards welcome."""
    return Hello(
        job=description.job,
        term=description.term,
        slot=slot,
        incarnation=incarnation,
        process=bytes([slot]) * 16,
        session=1,
        description=digest(description),
    )
