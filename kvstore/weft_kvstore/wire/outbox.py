"""What waits to be sent on a connection: the most urgent first, in frames that are filled as they leave. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Sequence
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from weft_kvstore.arrays import Buffer
from weft_kvstore.settings import LinkSettings
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import MAX_RUNS
from weft_kvstore.wire.out_run import NOTHING, OutRun, Source
from weft_kvstore.wire.rate import LinkRate, SentFrame, link_bounds

# --- A frame that leaves: what travels in it, and its bytes -----------------------------------------------------------


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
    sent_frame: SentFrame

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
        if len(self.pieces) == 1:
            (one,) = self.pieces
            parts = one.run.source.cut(one.start, one.stop)
        else:
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


# --- The queue of slices at the sending end of a link: priorities, frames filled at the moment of sending, credit -----
# Both ends use it: the client for gradients, the shard for values. Pure: the time is a parameter. The law: payload
# bytes sent and unacknowledged never exceed the credit, except that one slice larger than the credit goes alone. So
# after an urgent slice is put in, at most the credit or one slice of less urgent bytes arrives before it.


class Outbox(Generic[E, W]):
    """Slices on their way to one peer.

    `credit_bytes` and `frame_bytes` are the bounds of this moment. `loopback`: the link is no network's.
    Invariants: `queued_bytes` and `queued_slices` are sums over waiting runs that are not cancelled (`OutRun.queued`);
    `in_flight_bytes` the sum over frames that left and were not acknowledged; frame numbers count up and are never used
    twice. `_dead` counts the runs of the heap that are cancelled: no more than half of it.
    """

    def __init__(self, settings: LinkSettings, *, loopback: bool = False) -> None:
        self.loopback = loopback
        self.queued_bytes = 0
        self.queued_slices = 0
        self.in_flight_bytes = 0
        self.rate = LinkRate()
        self._settings = settings
        self._shared = False
        self._heap: list[tuple[int, int, int, OutRun[E, W]]] = []
        """By priority, then by when it came; parts of one run in their order."""
        self._dead = 0
        self._seq = 0
        self._frames: dict[int, OutFrame[E, W]] = {}
        self._frame_number = 0
        self._follow_rate()

    @property
    def shared(self) -> bool:
        """Whether the bytes of its frames pass through no socket."""
        return self._shared

    @shared.setter
    def shared(self, shared: bool) -> None:
        if shared != self._shared:
            self._shared = shared
            self._follow_rate()

    @property
    def queued_runs(self) -> int:
        """How many runs wait, whole or in part."""
        return len(self._heap) - self._dead

    def put(self, run: OutRun[E, W]) -> None:
        """Hands a run over. Equal priorities keep the order in which they came."""
        if not self._settings.priorities:
            run.priority, run.priorities = 0, None
        self._seq += 1
        run.seq = self._seq
        run.queued = True
        self.queued_bytes += int(run.bounds[-1] - run.bounds[0])
        self.queued_slices += run.count
        heapq.heappush(self._heap, (run.priority, run.seq, run.first, run))

    def fill(self, now: float) -> OutFrame[E, W] | None:
        """The frame to send now, of the most urgent slices; None where nothing waits or the credit is used up."""
        if not self._heap:
            return None
        room = self.credit_bytes - self.in_flight_bytes
        limit = min(self.frame_bytes, room)
        if limit < min(self.frame_bytes, self.queued_bytes) and 2 * self.in_flight_bytes > self.credit_bytes:
            return None  # A full frame can leave soon: it costs no more than a small one, and arrives no later.
        heap = self._heap
        taken: list[Piece[E, W]] = []
        total = 0
        while heap and len(taken) < MAX_RUNS:
            one = heap[0][3]
            if not one.queued:
                heapq.heappop(heap)
                self._dead -= 1
                continue
            first, bounds = one.sent, one.bounds
            count = one.count - first
            if bounds[-1] - bounds[first] > limit - total:
                count = one.fitting(limit - total)
            if one.priorities is not None and len(heap) > 1:
                priority, seq, *_ = min(heap[1:3])
                count = min(count, one.before(priority, equal=one.seq < seq))
            if not count:
                # The first slice may be larger than the frame, and than the credit where nothing is under way.
                if taken or (int(bounds[first + 1] - bounds[first]) > room and self.in_flight_bytes):
                    break
                count = 1
            start, stop = int(bounds[first]), int(bounds[first + count])
            taken.append(Piece(one, first, count, start, stop))
            total += stop - start
            self.queued_bytes -= stop - start
            self.queued_slices -= count
            if first + count == one.count:
                one.sent = one.count
                one.queued = False
                heapq.heappop(heap)
            else:
                one.leave(count)
                heapq.heapreplace(heap, (one.priority, one.seq, one.first + one.sent, one))
        if not taken:
            return None
        self._frame_number += 1
        sent_frame = self.rate.sent_frame(now, full=self.queued_slices > 0)
        frame = OutFrame(self._frame_number, tuple(taken), total, sent_frame)
        self._frames[frame.number] = frame
        self.in_flight_bytes += total
        return frame

    def acknowledge(self, number: int, now: float) -> tuple[Piece[E, W], ...]:
        """What a frame had that arrived. Raises ProtocolError for a frame that is not under way."""
        frame = self._frames.pop(number, None)
        if frame is None:
            raise ProtocolError(f"header: Acknowledge.frame: {number} is not under way")
        self.in_flight_bytes -= frame.nbytes
        if frame.nbytes and not self._shared:
            if self.rate.acknowledged(frame.sent_frame, frame.nbytes, now, self.credit_bytes):
                self._follow_rate()
        else:
            self.rate.passed_by()
        return frame.pieces

    def in_flight(self, number: int) -> OutFrame[E, W] | None:
        """The frame of that number, if it is under way."""
        return self._frames.get(number)

    def cancel(self, run: OutRun[E, W]) -> None:
        """What of a run has not left need not be sent any more; what is under way stays so. Its bytes are let go at
        once: whoever sends has references of his own to what has left."""
        run.cancelled = True
        if not run.queued:
            return
        run.queued = False  # It stays in the heap, without counting, until it comes to its head.
        self.queued_bytes -= run.nbytes
        self.queued_slices -= run.waiting
        run.source = NOTHING
        self._dead += 1
        if 2 * self._dead > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[3].queued]
            heapq.heapify(self._heap)
            self._dead = 0

    def requeue(self, more: Iterable[Piece[E, W]] = ()) -> list[OutRun[E, W]]:
        """After a broken connection: what was under way, and `more` that had left, waits again, in its old place,
        unless it was cancelled. Returns that, as new runs; what is cancelled next must be they too."""
        frames, self._frames = self._frames, {}
        self.in_flight_bytes = 0
        self.rate = LinkRate()
        self._follow_rate()
        again = [
            one.run.part(one.first, one.count)
            for one in chain(*[frame.pieces for frame in frames.values()], more)
            if not one.run.cancelled
        ]
        for run in again:
            run.queued = True
            self.queued_bytes += run.nbytes
            self.queued_slices += run.count
            heapq.heappush(self._heap, (run.priority, run.seq, run.first, run))
        return again

    def waiting(self) -> list[tuple[int, int, int]]:
        """Priority, slices and bytes of the runs that wait; may be called on any thread."""
        return [(run.priority, run.waiting, run.nbytes) for *_, run in list(self._heap) if run.queued]

    def clear(self, skip: Container[int] = ()) -> tuple[list[Piece[E, W]], list[Piece[E, W]]]:
        """Empties it, for a peer that is gone; returns what was under way but in the frames `skip`, and what had not
        left.

        Of what was under way the socket may still read bytes, so nobody may ever write them.
        """
        frames = [frame for number, frame in self._frames.items() if number not in skip]
        left = [piece for frame in frames for piece in frame.pieces if not piece.run.cancelled]
        waiting = [
            Piece(one, one.sent, one.waiting, int(one.bounds[one.sent]), int(one.bounds[-1]))
            for *_, one in sorted(self._heap)
            if one.queued
        ]
        self._heap, self._frames, self._dead = [], {}, 0
        self.queued_bytes = self.queued_slices = self.in_flight_bytes = 0
        return left, waiting

    def _follow_rate(self) -> None:
        self.credit_bytes, self.frame_bytes = link_bounds(
            self.rate, self._settings, loopback=self.loopback, shared=self._shared
        )
