"""Pulls, and frames of what is pushed, as the messages that say them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from weft_kvstore.operations.operation import Operation, PullOperation
from weft_kvstore.wire.cargo import SentEntry
from weft_kvstore.wire.messages import MAX_RUNS, Pull, Push
from weft_kvstore.wire.out_frame import OutFrame, Piece

SentPiece: TypeAlias = Piece[SentEntry, Operation]
SentFrame: TypeAlias = OutFrame[SentEntry, Operation]


def push_message(frame: SentFrame, acknowledge: list[int], at: int | None = None, *, placed: bool = False) -> Push:
    """The header of a frame. `at`: where its payload is in the arena; `placed`: runs of it are in their places there.
    `acknowledge`: frames that have arrived here."""
    entries, first, count, nbytes = zip(*frame.runs(), strict=True)
    cargo, request, lot, step, chunks, place = map(list, zip(*entries, strict=True))
    return Push(
        frame.number,
        cargo,
        request,
        lot,
        step,
        list(first),
        list(count),
        chunks,
        list(nbytes),
        at,
        [int(one) for one in place] if placed else [],
        acknowledge,
    )


def pull_messages(pulls: Iterable[PullOperation], shard: int, *, shared: bool) -> Iterator[Pull]:
    """Asks for what is still wanted; what one pull asks for is in one message. `shared`: the shard has the arena."""
    message = _no_pull()
    for pull in pulls:
        if pull.ended:
            continue
        asks = pull.asks(shard)
        if len(message.request) + len(asks) > MAX_RUNS:
            yield _short(message)
            message = _no_pull()
        number, asked, chunks = pull.number, pull.asked, pull.chunks(shard)
        state, reading = int(asked.names is not None), int(asked.reading)
        compressed = int(pull.may_be_compressed)
        for lot, first, count in asks:
            message.request.append(number)
            message.lot.append(lot)
            message.version.append(asked.version)
            message.state.append(state)
            message.reading.append(reading)
            message.first.append(first)
            message.count.append(count)
            message.chunks.append(chunks)
            message.place.append(int(shared and pull.in_place))
            message.compressed.append(compressed)
    if message.request:
        yield _short(message)


def _short(message: Pull) -> Pull:
    if not any(message.place):
        message.place.clear()
    return message


def _no_pull() -> Pull:
    return Pull([], [], [], [], [], [], [], [], [], [])
