"""A frame that leaves: what travels in it, and its bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from weft_kvstore.arrays.buffers import Buffer
from weft_kvstore.wire.out_run import OutRun, Source
from weft_kvstore.wire.rate import Departure

E = TypeVar("E")
W = TypeVar("W")


class Piece(NamedTuple, Generic[E, W]):
    """Slices `first` to `first + count` of a run, numbered from 0 in it, that travel in a frame: bytes `start` to
    `stop` of the run."""

    run: OutRun[E, W]
    first: int
    count: int  # type: ignore[assignment]  # nobody asks a tuple's `count` of it
    start: int
    stop: int


class FrameRun(NamedTuple, Generic[E]):
    """Adjacent slices of one entry."""

    entry: E
    first: int
    count: int  # type: ignore[assignment]  # nobody asks a tuple's `count` of it
    nbytes: int


class OutFrame(NamedTuple, Generic[E, W]):
    """A frame that leaves now: its number, its pieces and their bytes in the same order."""

    number: int
    pieces: tuple[Piece[E, W], ...]
    nbytes: int
    departure: Departure

    def runs(self) -> list[FrameRun[E]]:
        """What the header says of it: pieces that continue one another are one run."""
        if len(self.pieces) == 1:
            ((run, first, count, _, _),) = self.pieces
            return [FrameRun(run.entry, run.first + first, count, self.nbytes)]
        found: list[FrameRun[E]] = []
        for one in self.pieces:
            entry, first, nbytes = one.run.entry, one.run.first + one.first, one.stop - one.start
            last = found[-1] if found else None
            if last is not None and last.first + last.count == first and last.entry == entry:
                found[-1] = FrameRun(entry, last.first, last.count + one.count, last.nbytes + nbytes)
            else:
                found.append(FrameRun(entry, first, one.count, nbytes))
        return found

    def payload(self) -> Buffer:
        """The bytes: a view where they lie side by side in one place, else joined."""
        parts = parts_of(self.pieces)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def parts_of(pieces: Sequence[Piece[E, W]]) -> Sequence[Buffer]:
    """The bytes of pieces, one behind the other. Those that continue one another are one run of a frame, and are cut
    at once: what a source makes of a run depends on all of it."""
    if len(pieces) == 1:
        (one,) = pieces
        return one.run.source.cut(one.start, one.stop)
    stretches: list[tuple[Source, int, int]] = []
    for one in pieces:
        source, start = one.run.source, one.start
        if stretches and stretches[-1][0] is source and stretches[-1][2] == start:
            start = stretches.pop()[1]
        stretches.append((source, start, one.stop))
    return [part for source, start, stop in stretches for part in source.cut(start, stop)]
