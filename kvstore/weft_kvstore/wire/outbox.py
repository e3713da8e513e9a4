"""What waits to be sent on a connection: segments, the credit of a link, and the queue that fills frames with the most
urgent slices at the moment of sending. Pure: the time is a parameter."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from weft_kvstore.arrays import Array, Buffer
from weft_kvstore.settings import COPIED_BYTES, LinkSettings
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import MAX_ENTRIES

# --- Segments: adjacent slices that are sent in their order, in one or several frames ---------------------------------


E = TypeVar("E")
W = TypeVar("W")


Source: TypeAlias = Callable[[int, int], Sequence[Buffer]]
"""Reads bytes `start` to `stop` of a segment, which nobody writes until they are acknowledged: buffers in their
order."""


MOST_WRAPPED: Final = 1024
"""Ranges of a buffer that are kept as their socket sends them: those of a step, many times over."""


class BufferSource:
    """Bytes of one buffer. `wrap` makes the object by which a socket sends a large range of them without a copy. These
    objects are kept for ranges that are sent at each step: to make and to free one takes longer than to send it."""

    __slots__ = ("_wrapped", "base", "nbytes", "wrap")

    def __init__(self, base: memoryview, wrap: Callable[[memoryview], Any] | None = None) -> None:
        self.base, self.nbytes = base, base.nbytes
        self.wrap = wrap
        self._wrapped: dict[tuple[int, int], Any] = {}

    def __call__(self, start: int, stop: int) -> Sequence[Buffer]:
        if self.wrap is None or stop - start < COPIED_BYTES:
            return (self.base[start:stop],)
        wrapped = self._wrapped.get((start, stop))
        if wrapped is None:
            if len(self._wrapped) == MOST_WRAPPED:
                self._wrapped.clear()
            wrapped = self._wrapped[start, stop] = self.wrap(self.base[start:stop])
        return (wrapped,)


CALL_PRIORITY: Final = 1 << 32
"""A slice is sent by its described priority minus its call's priority times this, the lowest first. Described
priorities differ by less than it, so calls rank above them."""

CANCELLED: Final[Source] = BufferSource(memoryview(b""))
"""The source of a cancelled segment."""


class OutSegment(Generic[E, W]):
    """Slices `first` to `first + count` of what its `entry` (an E) names; slice `first + i` has bytes `bounds[i]` to
    `bounds[i + 1]` of its source, the first of them at `start`. `owner` (a W) is the caller's; `request` is what it is
    cancelled by.

    `priorities` of the slices ascend; None if all have the same `priority`. A segment of which only some slices leave
    in a frame is split. `row` is that of the last frame in which it left, -1 if it never did.
    """

    __slots__ = (
        *("bounds", "count", "entry", "first", "nbytes", "owner", "priorities", "priority", "request", "row", "seq"),
        *("source", "start"),
    )

    def __init__(
        self,
        entry: E,
        first: int,
        bounds: Array,
        source: Source,
        *,
        priority: int,
        owner: W,
        priorities: Array | None = None,
    ) -> None:
        self.entry = entry
        self.first = first
        self.count = len(bounds) - 1
        self.start = int(bounds[0])
        self.nbytes = int(bounds[-1]) - self.start
        self.bounds = bounds
        self.source = source
        self.priorities = priorities
        self.priority = priority if priorities is None else int(priorities[0])
        self.owner = owner
        self.request = self.seq = 0
        self.row = -1

    def split(self, count: int) -> OutSegment[E, W]:
        """Takes its first `count` slices away, fewer than all: they are a segment of the same place in the queue."""
        some: OutSegment[E, W] = OutSegment(
            self.entry,
            self.first,
            self.bounds[: count + 1],
            self.source,
            priority=self.priority,
            owner=self.owner,
            priorities=None if self.priorities is None else self.priorities[:count],
        )
        some.request, some.seq = self.request, self.seq
        self.first += count
        self.count -= count
        self.start += some.nbytes
        self.nbytes -= some.nbytes
        self.bounds = self.bounds[count:]
        if self.priorities is not None:
            self.priorities = self.priorities[count:]
            self.priority = int(self.priorities[0])
        return some


# --- How much may be in flight on a link, and how long a frame may be -------------------------------------------------


LOCAL_CREDIT_BYTES: Final = 32 << 20
LOOPBACK_FRAME_BYTES: Final = 4 << 20
SHARED_FRAME_BYTES: Final = 8 << 20
"""Over loopback and through shared memory the processors are the limit, and a frame costs them as much whatever its
size. A socket's frame is received while the one before it is merged."""
FIRST_CREDIT_BYTES: Final = 256 << 10
"""On a network, before anything is measured: a slow link's 20 ms at 100 Mbit/s."""
CREDIT_BASE_BYTES: Final = 192 << 10
"""In flight beside what the rate says. Without it the smaller credit of two directions, whose acknowledgements wait
behind each other's data, would shrink further."""
CREDIT_TIME_S: Final = 0.004
"""Time of the link's rate, beside its round trip, that is in flight: two frames, which keep it busy."""
MAX_AUTO_CREDIT_BYTES: Final = 8 << 20
FRAME_TIME_S: Final = 0.002
"""Time of the link's rate that a frame may take: what has begun cannot be overtaken."""
MIN_FRAME_BYTES: Final = 32 << 10
MAX_AUTO_FRAME_BYTES: Final = 4 << 20
MIN_TRIP_S: Final = 1e-5
"""Shorter times are the clock's and the scheduler's, not the link's."""
GAIN: Final = 0.125
"""Weight of a new sample in the rate, as in TCP's round-trip time."""


class LinkBounds:
    """How many bytes may be sent and not acknowledged (`credit_bytes`), and how many a frame may have (`frame_bytes`).

    They are what the settings say; else constants where the link is `loopback` or its payloads are in `shared` memory;
    else they follow the rate at which a network delivers. When a frame is acknowledged, the bytes that were in flight
    when it left, over the time since, are a sample of the rate (Little's law); `bytes_per_s` is their moving average,
    None before the first. `round_trip_s` is the shortest time ever seen: later ones include the queue that the credit
    makes.
    """

    __slots__ = ("_settings", "bytes_per_s", "credit_bytes", "frame_bytes", "is_local", "round_trip_s")

    def __init__(self, settings: LinkSettings, *, loopback: bool, shared: bool = False) -> None:
        self._settings = settings
        self.is_local = loopback or shared
        self.bytes_per_s: float | None = None
        self.round_trip_s = math.inf
        if self.is_local:
            self._set(LOCAL_CREDIT_BYTES, SHARED_FRAME_BYTES if shared else LOOPBACK_FRAME_BYTES)
        else:
            self._set(FIRST_CREDIT_BYTES, MIN_FRAME_BYTES)

    def acknowledged(self, in_flight: int, trip_s: float) -> None:
        """A frame arrived `trip_s` after it left over a network, with so many bytes in flight then."""
        trip_s = max(trip_s, MIN_TRIP_S)
        self.round_trip_s = min(self.round_trip_s, trip_s)
        rate, sample = self.bytes_per_s, in_flight / trip_s
        if rate is None:
            rate = sample
        elif sample > rate or 2 * in_flight > self.credit_bytes:  # Less in flight says less than what the link can do.
            # Acknowledgements that come together make a sample far too high.
            rate += GAIN * (min(sample, 2 * rate) - rate)
        self.bytes_per_s = rate
        # Twice the round trip at least: a long link's rate is measured under the credit, and with less never found.
        credit = CREDIT_BASE_BYTES + int(rate * (self.round_trip_s + max(CREDIT_TIME_S, self.round_trip_s)))
        self._set(
            min(credit, MAX_AUTO_CREDIT_BYTES),
            min(max(int(rate * FRAME_TIME_S), MIN_FRAME_BYTES), MAX_AUTO_FRAME_BYTES),
        )

    def _set(self, credit: int, frame: int) -> None:
        self.credit_bytes = self._settings.credit_bytes or credit
        self.frame_bytes = self._settings.frame_bytes or frame


# --- Frames -----------------------------------------------------------------------------------------------------------


class OutFrame(NamedTuple, Generic[E, W]):
    """A frame that leaves now: its number, the rows of its message, its segments, the bytes that they have together,
    when it left, and how many bytes were in flight then, its own among them."""

    number: int
    rows: list[Any]
    segments: list[OutSegment[E, W]]
    nbytes: int
    left_at: float
    in_flight: int

    def sections(self) -> list[tuple[list[OutSegment[E, W]], Sequence[Buffer]]]:
        """Adjacent segments of one source, and their bytes, which are read at once: how a source encodes a segment
        depends on all of it."""
        found: list[list[OutSegment[E, W]]] = []
        for segment in self.segments:
            last = found[-1][-1] if found else None
            if last is not None and last.source is segment.source and last.start + last.nbytes == segment.start:
                found[-1].append(segment)
            else:
                found.append([segment])
        return [(some, some[0].source(some[0].start, some[-1].start + some[-1].nbytes)) for some in found]

    def payload(self) -> Buffer:
        """The bytes: a view if they are adjacent in one buffer, else joined."""
        if len(self.segments) == 1:
            (one,) = self.segments
            buffers = one.source(one.start, one.start + one.nbytes)
        else:
            buffers = [buffer for _, buffers in self.sections() for buffer in buffers]
        return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def _rows_of(segments: Sequence[OutSegment[Any, Any]]) -> list[Any]:
    """The rows by which a message names the segments of its frame: the fields of an entry, then `first`, `count`,
    `nbytes`. Segments that continue one another have one together."""
    rows: list[Any] = []
    entry, next_slice = None, 0
    for segment in segments:
        if segment.first == next_slice and segment.entry == entry:
            rows[-1][-2] += segment.count
            rows[-1][-1] += segment.nbytes
        else:
            entry = segment.entry
            rows.append([*entry, segment.first, segment.count, segment.nbytes])
        next_slice = segment.first + segment.count
        segment.row = len(rows) - 1
    return rows


# --- The queue of slices at the sending end of a link: priorities, frames filled at the moment of sending, credit -----
# Both ends use it: the client for gradients, the shard for values. Pure: the time is a parameter. The law: payload
# bytes sent and unacknowledged never exceed the credit, except that one slice larger than the credit goes alone. So
# after an urgent slice is put in, at most the credit or one slice of less urgent bytes arrives before it.


class Outbox(Generic[E, W]):
    """Slices on their way to one peer.

    `bounds`: how much may be in flight now. `loopback`: the link is no network's.
    Invariants: `waiting` has the segments that wait, by request; `queued_bytes` and `queued_slices` are sums over them;
    `in_flight_bytes` is the sum over `frames`, which left and were not acknowledged; their numbers count up and are
    never used twice. `_cancelled` counts the segments of the heap that are cancelled: after a `cancel` no more than
    half of it.
    """

    def __init__(self, settings: LinkSettings, *, loopback: bool = False) -> None:
        self.loopback = loopback
        self.queued_bytes = 0
        self.queued_slices = 0
        self.in_flight_bytes = 0
        self._settings = settings
        self.shared = False
        self.bounds = LinkBounds(settings, loopback=loopback)
        self.waiting: dict[int, dict[OutSegment[E, W], None]] = {}
        self._heap: list[tuple[int, int, int, OutSegment[E, W]]] = []
        """By priority, then by when it came; what was split off a segment in its order."""
        self._cancelled = 0
        self._seq = 0
        self.frames: dict[int, OutFrame[E, W]] = {}
        self._frame_number = 0

    def share(self, *, shared: bool) -> None:
        """Whether the bytes of its frames pass through shared memory from now on, and no socket."""
        if shared != self.shared:
            self.shared = shared
            self.bounds = LinkBounds(self._settings, loopback=self.loopback, shared=shared)

    @property
    def queued_segments(self) -> int:
        """How many segments wait, whole or in part."""
        return len(self._heap) - self._cancelled

    def put(self, segment: OutSegment[E, W], request: int) -> None:
        """Hands a segment over. Equal priorities keep the order in which they came, also of what is put again."""
        if not self._settings.priorities:
            segment.priority, segment.priorities = 0, None
        if not segment.seq:
            self._seq += 1
            segment.seq = self._seq
        segment.request = request
        self.queued_bytes += segment.nbytes
        self.queued_slices += segment.count
        self.waiting.setdefault(request, {})[segment] = None
        heapq.heappush(self._heap, (segment.priority, segment.seq, segment.first, segment))

    def fill(self, now: float, most: float = math.inf) -> OutFrame[E, W] | None:
        """The frame to send now, of the most urgent slices, `most` bytes of them where none is larger; None where
        nothing waits or the credit is used up."""
        heap, credit = self._heap, self.bounds.credit_bytes
        credit_left = credit - self.in_flight_bytes
        largest = int(min(self.bounds.frame_bytes, most))
        limit = min(largest, credit_left)
        if limit < min(largest, self.queued_bytes) and 2 * self.in_flight_bytes > credit:
            return None  # A full frame can leave soon: it costs no more than a small one, and arrives no later.
        segments: list[OutSegment[E, W]] = []
        total = 0
        while heap and len(segments) < MAX_ENTRIES:
            segment = heap[0][3]
            if segment.source is CANCELLED:
                heapq.heappop(heap)
                self._cancelled -= 1
                continue
            count = segment.count  # How many leave before any other, within the limit.
            if segment.nbytes > limit - total:
                count = int(segment.bounds[1:].searchsorted(segment.start + limit - total, "right"))
            if segment.priorities is not None and len(heap) > 1:
                priority, seq, *_ = min(heap[1:3])
                side: Literal["left", "right"] = "right" if segment.seq < seq else "left"
                count = min(count, max(int(segment.priorities.searchsorted(priority, side)), 1))
            if not count:  # A frame's first slice may be larger than the limit, and than the credit if it goes alone.
                if segments or (int(segment.bounds[1]) - segment.start > credit_left and self.in_flight_bytes):
                    break
                count = 1
            if count < segment.count:
                rest, segment = segment, segment.split(count)
                heapq.heapreplace(heap, (rest.priority, rest.seq, rest.first, rest))
            else:
                heapq.heappop(heap)
                others = self.waiting[segment.request]
                del others[segment]
                if not others:
                    del self.waiting[segment.request]
            segments.append(segment)
            total += segment.nbytes
            self.queued_slices -= count
        if not segments:
            return None
        self.queued_bytes -= total
        self._frame_number += 1
        self.in_flight_bytes += total
        frame = OutFrame(self._frame_number, _rows_of(segments), segments, total, now, self.in_flight_bytes)
        self.frames[frame.number] = frame
        return frame

    def acknowledge(self, number: int, now: float) -> list[OutSegment[E, W]]:
        """The segments of a frame that has arrived. Raises ProtocolError for a frame that is not in flight."""
        frame = self.frames.pop(number, None)
        if frame is None:
            raise ProtocolError(f"header: Acknowledge.frame: {number} is not under way")
        self.in_flight_bytes -= frame.nbytes
        if frame.nbytes and not self.bounds.is_local:
            self.bounds.acknowledged(frame.in_flight, now - frame.left_at)
        return frame.segments

    def cancel(self, request: int) -> list[OutSegment[E, W]]:
        """What waits of a request will not be sent, and is returned; what is in flight stays so. Releases their source
        at once."""
        segments = [*self.waiting.pop(request, ())]
        for segment in segments:
            self.queued_bytes -= segment.nbytes
            self.queued_slices -= segment.count
            segment.source = CANCELLED  # It stays in the heap until it comes to its head.
        self._cancelled += len(segments)
        if 2 * self._cancelled > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[3].source is not CANCELLED]
            heapq.heapify(self._heap)
            self._cancelled = 0
        return segments

    def requeue(self) -> None:
        """After a broken connection: what was in flight waits again, in its old place."""
        frames, self.frames = self.frames, {}
        self.in_flight_bytes = 0
        self.bounds = LinkBounds(self._settings, loopback=self.loopback, shared=self.shared)
        for frame in frames.values():
            for segment in frame.segments:
                self.put(segment, segment.request)

    def clear(self) -> tuple[list[OutSegment[E, W]], list[OutSegment[E, W]]]:
        """Empties it, for a peer that is gone: what has left on some connection, and what has not."""
        left = [one for frame in self.frames.values() for one in frame.segments]
        unsent: list[OutSegment[E, W]] = []
        for segment in [one for some in self.waiting.values() for one in some]:
            (unsent if segment.row < 0 else left).append(segment)
        self._heap, self.frames, self.waiting, self._cancelled = [], {}, {}, 0
        self.queued_bytes = self.queued_slices = self.in_flight_bytes = 0
        return left, unsent
