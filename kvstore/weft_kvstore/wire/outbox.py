"""What waits to be sent on a connection: segments, pins on the arrays that have their bytes, the credit of a
link, and the queue that fills frames with the most urgent slices at the moment of sending. Pure: the time is a
parameter."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from weft_kvstore.arrays import Array, Buffer, bytes_of
from weft_kvstore.settings import COPIED_BYTES, LinkSettings
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import MAX_ENTRIES

# --- Segments: adjacent slices that are sent in their order, in one or several frames ---------------------------------


E = TypeVar("E")
W = TypeVar("W")


class Source(Protocol):
    """The bytes of a segment, which nobody writes until they are acknowledged."""

    def read(self, start: int, stop: int) -> Sequence[Buffer]:
        """Bytes `start` to `stop`, as buffers in their order."""


MOST_KEPT_PARTS: Final = 1024
"""Parts of a buffer that are kept as their socket sends them: those of a step, many times over."""


class BufferSource:
    """Bytes of one buffer. `wrap` makes what a socket sends of a large part without a copy. Where the same parts are
    sent at each step, these objects are kept: to make and to free one takes longer than to send it."""

    __slots__ = ("_parts", "base", "nbytes", "wrap")

    def __init__(self, base: memoryview, wrap: Callable[[memoryview], Any] | None = None) -> None:
        self.base, self.nbytes = base, base.nbytes
        self.wrap = wrap
        self._parts: dict[tuple[int, int], Any] = {}

    def read(self, start: int, stop: int) -> Sequence[Buffer]:
        if self.wrap is None or stop - start < COPIED_BYTES:
            return (self.base[start:stop],)
        part = self._parts.get((start, stop))
        if part is None:
            if len(self._parts) == MOST_KEPT_PARTS:
                self._parts.clear()
            part = self._parts[start, stop] = self.wrap(self.base[start:stop])
        return (part,)


CALL_PRIORITY: Final = 1 << 32
"""A slice is sent by its described priority minus its call's priority times this, the lowest first. Described
priorities differ by less than it, so calls rank above them."""

EMPTY: Final = BufferSource(memoryview(b""))
"""The source of a cancelled segment."""


class OutSegment(Generic[E, W]):
    """Slices `first` to `first + count` of what its `entry` (an E) names; slice `first + i` has bytes `bounds[i]` to
    `bounds[i + 1]` of its source. `owner` (a W) is the caller's.

    `priorities` of the slices ascend; None if all have the same `priority`. While the segment is queued, `sent` slices
    have been sent; `nbytes` and `priority` are those of the rest, and of its first slice.
    """

    __slots__ = (
        "bounds",
        "cancelled",
        "count",
        "entry",
        "first",
        "is_again",
        "nbytes",
        "owner",
        "priorities",
        "priority",
        "queued",
        "sent",
        "seq",
        "source",
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
        self.nbytes = int(bounds[-1] - bounds[0])
        self.bounds = bounds
        self.source = source
        self.priorities = priorities
        self.priority = priority if priorities is None else int(priorities[0])
        self.owner = owner
        self.sent = 0
        self.seq = 0
        self.is_again = False
        """Whether it was sent before."""
        self.queued = False
        self.cancelled = False

    @property
    def waiting(self) -> int:
        """How many slices were not sent yet."""
        return self.count - self.sent

    def mark_sent(self, count: int, nbytes: int) -> None:
        """Counts `count` more slices as sent, which have so many bytes."""
        self.sent += count
        self.nbytes -= nbytes
        if self.priorities is not None and self.sent < self.count:
            self.priority = int(self.priorities[self.sent])

    def part(self, first: int, count: int) -> OutSegment[E, W]:
        """A segment of some of its slices, numbered from 0 in it, which were sent and are sent again."""
        priorities = None if self.priorities is None else self.priorities[first : first + count]
        again: OutSegment[E, W] = OutSegment(
            self.entry,
            self.first + first,
            self.bounds[first : first + count + 1],
            self.source,
            priority=self.priority,
            owner=self.owner,
            priorities=priorities,
        )
        again.seq, again.is_again = self.seq, True
        return again


# --- Pins: parts of arrays that are not written while their bytes are sent --------------------------------------------


class Pinnable:
    """An array in parts; `pinned` (parts) counts the pins on each, and a part is not written while it is pinned.
    `source` has the bytes, from `start` on. `shared`: the array is in shared memory, where peers read it; `original` is
    that array, of a copy."""

    __slots__ = ("array", "original", "pinned", "shared", "source", "start")

    def __init__(self, array: Array, source: BufferSource, start: int, parts: int, *, shared: bool = False) -> None:
        self.original: Pinnable | None = None
        self.array = array
        self.source = source
        self.start = start
        self.shared = shared
        self.pinned = np.zeros(parts, np.int32)

    def copy(self) -> Pinnable:
        """A copy without pins, in private memory."""
        array = self.array.copy()
        copy = Pinnable(array, BufferSource(bytes_of(array), self.source.wrap), 0, len(self.pinned))
        copy.original = self if self.shared else self.original
        return copy

    def copied_back(self) -> Pinnable:
        """The shared original with this copy's values, if it has no pins; else this copy."""
        original = self.original
        if original is None or original.pinned.any():
            return self
        np.copyto(original.array, self.array)
        return original


class Pin:
    """Pins `count` parts of an array from number `part` on; nothing if the array is None. `first` is what its owner
    calls the first of them."""

    __slots__ = ("_offset", "pinnable")

    def __init__(self, pinnable: Pinnable | None, part: int, count: int, *, first: int = 0) -> None:
        self.pinnable = pinnable
        self._offset = part - first
        if pinnable is not None:
            pinnable.pinned[part if count == 1 else slice(part, part + count)] += 1

    def release(self, first: int, count: int) -> None:
        """Unpins some that have arrived, or will not be sent."""
        if self.pinnable is not None:
            part = first + self._offset
            self.pinnable.pinned[part if count == 1 else slice(part, part + count)] -= 1


UNPINNED: Final = Pin(None, 0, 0)
"""The owner of segments of an array that is written by nobody."""


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


# --- Frames and the fragments of segments in them ---------------------------------------------------------------------


class Fragment(NamedTuple, Generic[E, W]):
    """Slices `first` to `first + count` of a segment, numbered from 0 in it, that travel in a frame: bytes `start` to
    `stop` of the segment. They are in row number `row` of the frame."""

    segment: OutSegment[E, W]
    first: int
    count: int  # type: ignore[assignment]  # nobody asks a tuple's `count` of it
    start: int
    stop: int
    row: int = 0


class OutFrame(NamedTuple, Generic[E, W]):
    """A frame that leaves now: its number, its fragments and their bytes in the same order, when it left, and how many
    bytes were in flight then, its own among them. `rows` are those of its message: the fields of an entry, then
    `first`, `count`, `nbytes`; fragments that continue one another have one together."""

    number: int
    rows: list[Any]
    fragments: tuple[Fragment[E, W], ...]
    nbytes: int
    left_at: float
    in_flight: int

    def sections(self) -> list[tuple[list[Fragment[E, W]], Sequence[Buffer]]]:
        """Adjacent fragments of one source, and their bytes, which are read at once: how a source encodes a segment
        depends on all of it."""
        found: list[list[Fragment[E, W]]] = []
        for fragment in self.fragments:
            last = found[-1][-1] if found else None
            if last is not None and last.segment.source is fragment.segment.source and last.stop == fragment.start:
                found[-1].append(fragment)
            else:
                found.append([fragment])
        return [(some, some[0].segment.source.read(some[0].start, some[-1].stop)) for some in found]

    def payload(self) -> Buffer:
        """The bytes: a view if they are adjacent in one buffer, else joined."""
        if len(self.fragments) == 1:
            (one,) = self.fragments
            parts = one.segment.source.read(one.start, one.stop)
        else:
            parts = [part for _, parts in self.sections() for part in parts]
        return parts[0] if len(parts) == 1 else b"".join(parts)


# --- The queue of slices at the sending end of a link: priorities, frames filled at the moment of sending, credit -----
# Both ends use it: the client for gradients, the shard for values. Pure: the time is a parameter. The law: payload
# bytes sent and unacknowledged never exceed the credit, except that one slice larger than the credit goes alone. So
# after an urgent slice is put in, at most the credit or one slice of less urgent bytes arrives before it.


class Outbox(Generic[E, W]):
    """Slices on their way to one peer.

    `bounds`: how much may be in flight now. `loopback`: the link is no network's.
    Invariants: `queued_bytes` and `queued_slices` are sums over waiting segments that are not cancelled
    (`OutSegment.queued`); `in_flight_bytes` the sum over `frames`, which left and were not acknowledged; their numbers
    count up and are never used twice. `_cancelled` counts the segments of the heap that are cancelled: no more than
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
        self._heap: list[tuple[int, int, int, OutSegment[E, W]]] = []
        """By priority, then by when it came; parts of one segment in their order."""
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

    def put(self, segment: OutSegment[E, W]) -> None:
        """Hands a segment over. Equal priorities keep the order in which they came; a part has its segment's place."""
        if not self._settings.priorities:
            segment.priority, segment.priorities = 0, None
        if not segment.seq:
            self._seq += 1
            segment.seq = self._seq
        segment.queued = True
        self.queued_bytes += segment.nbytes
        self.queued_slices += segment.count
        heapq.heappush(self._heap, (segment.priority, segment.seq, segment.first, segment))

    def fill(self, now: float, most: float = math.inf) -> OutFrame[E, W] | None:
        """The frame to send now, of the most urgent slices, `most` bytes of them where none is larger; None where
        nothing waits or the credit is used up."""
        if not self._heap:
            return None
        credit = self.bounds.credit_bytes
        room = credit - self.in_flight_bytes
        largest = int(min(self.bounds.frame_bytes, most))
        limit = min(largest, room)
        if limit < min(largest, self.queued_bytes) and 2 * self.in_flight_bytes > credit:
            return None  # A full frame can leave soon: it costs no more than a small one, and arrives no later.
        heap = self._heap
        fragments: list[Fragment[E, W]] = []
        rows: list[Any] = []
        entry: E | None = None
        total = next_slice = 0
        while heap and len(fragments) < MAX_ENTRIES:
            segment = heap[0][3]
            if not segment.queued:
                heapq.heappop(heap)
                self._cancelled -= 1
                continue
            sent, bounds = segment.sent, segment.bounds
            count = segment.count - sent
            if segment.nbytes > limit - total or segment.priorities is not None:
                count = self._count_within(limit - total)
            if not count:
                # The first slice may be larger than the frame, and than the credit where nothing is under way.
                if fragments or (int(bounds[sent + 1] - bounds[sent]) > room and self.in_flight_bytes):
                    break
                count = 1
            first, start = segment.first + sent, int(bounds[sent])
            nbytes = segment.nbytes if sent + count == segment.count else int(bounds[sent + count]) - start
            if first == next_slice and segment.entry == entry:
                rows[-1][-2] += count
                rows[-1][-1] += nbytes
            else:
                entry = segment.entry
                rows.append([*entry, first, count, nbytes])  # type: ignore[misc]  # it is a tuple
            next_slice = first + count
            fragments.append(Fragment(segment, sent, count, start, start + nbytes, len(rows) - 1))
            total += nbytes
            self.queued_slices -= count
            segment.mark_sent(count, nbytes)
            if segment.sent < segment.count:
                heapq.heapreplace(heap, (segment.priority, segment.seq, segment.first + segment.sent, segment))
            else:
                segment.queued = False
                heapq.heappop(heap)
        if not fragments:
            return None
        self.queued_bytes -= total
        self._frame_number += 1
        self.in_flight_bytes += total
        frame = OutFrame(self._frame_number, rows, tuple(fragments), total, now, self.in_flight_bytes)
        self.frames[frame.number] = frame
        return frame

    def _count_within(self, limit: int) -> int:
        """How many slices of the most urgent segment leave before any other, within so many bytes."""
        heap, segment = self._heap, self._heap[0][3]
        sent = segment.sent
        count = segment.count - sent
        if segment.nbytes > limit:
            count = int(segment.bounds[sent + 1 :].searchsorted(segment.bounds[sent] + limit, "right"))
        if segment.priorities is not None and len(heap) > 1:
            priority, seq, *_ = min(heap[1:3])
            side: Literal["left", "right"] = "right" if segment.seq < seq else "left"
            count = min(count, max(int(segment.priorities[sent:].searchsorted(priority, side)), 1))
        return count

    def acknowledge(self, number: int, now: float) -> tuple[Fragment[E, W], ...]:
        """The fragments of a frame that has arrived. Raises ProtocolError for a frame that is not in flight."""
        frame = self.frames.pop(number, None)
        if frame is None:
            raise ProtocolError(f"header: Acknowledge.frame: {number} is not under way")
        self.in_flight_bytes -= frame.nbytes
        if frame.nbytes and not self.bounds.is_local:
            self.bounds.acknowledged(frame.in_flight, now - frame.left_at)
        return frame.fragments

    def cancel(self, segment: OutSegment[E, W]) -> None:
        """Slices of a segment that were not sent will not be; those in flight stay so. Releases the segment's source at
        once: the sender has references of its own to what was sent."""
        segment.cancelled = True
        if not segment.queued:
            return
        segment.queued = False  # It stays in the heap, without counting, until it comes to its head.
        self.queued_bytes -= segment.nbytes
        self.queued_slices -= segment.waiting
        segment.source = EMPTY
        self._cancelled += 1
        if 2 * self._cancelled > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[3].queued]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def requeue(self) -> list[OutSegment[E, W]]:
        """After a broken connection: what was in flight is queued again in its old order, unless it was cancelled.
        Returns the new segments, which have to be cancelled in turn where their owner is."""
        frames, self.frames = self.frames, {}
        self.in_flight_bytes = 0
        self.bounds = LinkBounds(self._settings, loopback=self.loopback, shared=self.shared)
        return self._put_again([one for frame in frames.values() for one in frame.fragments])

    def requeue_segment(self, number: int, row: int) -> list[OutSegment[E, W]]:
        """A row of a frame in flight was refused: its fragments are queued again, as by `requeue`."""
        frame = self.frames[number]
        self.frames[number] = frame._replace(fragments=tuple([one for one in frame.fragments if one.row != row]))
        return self._put_again([one for one in frame.fragments if one.row == row])

    def _put_again(self, fragments: Sequence[Fragment[E, W]]) -> list[OutSegment[E, W]]:
        again = [one.segment.part(one.first, one.count) for one in fragments if not one.segment.cancelled]
        for segment in again:
            self.put(segment)
        return again

    def clear(self) -> tuple[list[Fragment[E, W]], list[Fragment[E, W]]]:
        """Empties it, for a peer that is gone: what has left on some connection, and what has not."""
        left = [one for frame in self.frames.values() for one in frame.fragments]
        unsent: list[Fragment[E, W]] = []
        for segment in [one for *_, one in self._heap if one.queued]:
            sent, bounds = segment.sent, segment.bounds
            rest = Fragment(segment, sent, segment.waiting, int(bounds[sent]), int(bounds[-1]))
            (left if segment.is_again else unsent).append(rest)
        self._heap, self.frames, self._cancelled = [], {}, 0
        self.queued_bytes = self.queued_slices = self.in_flight_bytes = 0
        return left, unsent
