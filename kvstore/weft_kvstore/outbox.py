"""The queue of slices at the sending end of a link: priorities, frames filled at the moment of sending, credit.

Both ends use it: the client for gradients, the shard for values. Pure: the time is a parameter.
The law: payload bytes sent and unacknowledged never exceed the credit, except that one slice larger than the credit
goes alone. So after an urgent slice is put in, at most the credit or one slice of less urgent bytes arrives before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from weft_kvstore.codec import Buffer, ProtocolError
from weft_kvstore.messages import MAX_RUNS
from weft_kvstore.rate import Departure, LinkRate
from weft_kvstore.settings import LinkSettings

FRAME_TIME_S: Final = 0.002
"""Time of the link's rate that a frame may take: what has begun cannot be overtaken."""
CREDIT_TIME_S: Final = 0.004
"""Time of the link's rate, beside its round trip, that is under way: two frames keep it busy."""
MIN_FRAME_BYTES: Final = 64 << 10
MAX_AUTO_FRAME_BYTES: Final = 1 << 20
"""Larger frames were slower over loopback: they leave the cache."""
MIN_CREDIT_BYTES: Final = 128 << 10
FIRST_CREDIT_BYTES: Final = 256 << 10
"""Before anything is measured: a slow link's 20 ms at 100 Mbit/s."""
MAX_AUTO_CREDIT_BYTES: Final = 4 << 20

E = TypeVar("E")
W = TypeVar("W")


class OutSlice(Generic[E, W]):
    """A slice that waits, or is under way. `entry` (an E) is what its run says beside slice numbers;
    `base[start:stop]` its bytes, which stay unchanged until it is acknowledged; `owner` (a W) is the caller's."""

    __slots__ = ("base", "cancelled", "entry", "index", "owner", "priority", "queued", "seq", "start", "stop")

    def __init__(
        self,
        entry: E,
        index: int,
        base: memoryview,
        start: int,
        stop: int,
        *,
        priority: int,
        owner: W,
    ) -> None:
        self.priority = priority
        self.entry = entry
        self.index = index
        self.base = base
        self.start = start
        self.stop = stop
        self.owner = owner
        self.seq = 0
        self.queued = False
        self.cancelled = False

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class OutRun(Generic[E]):
    """Adjacent slices of one entry."""

    entry: E
    first: int
    count: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class OutFrame(Generic[E, W]):
    """A frame that leaves now: its number, its runs and their bytes in the same order."""

    number: int
    slices: tuple[OutSlice[E, W], ...]
    nbytes: int
    departure: Departure

    def runs(self) -> list[OutRun[E]]:
        found: list[OutRun[E]] = []
        for one in self.slices:
            last = found[-1] if found else None
            if last is not None and last.entry == one.entry and last.first + last.count == one.index:
                found[-1] = OutRun(last.entry, last.first, last.count + 1, last.nbytes + one.nbytes)
            else:
                found.append(OutRun(one.entry, one.index, 1, one.nbytes))
        return found

    def payload(self) -> Buffer:
        """The bytes: a view where they lie side by side in one array, else joined."""
        first, last = self.slices[0], self.slices[-1]
        stop = first.start
        for one in self.slices:
            if one.base is not first.base or one.start != stop:
                return b"".join([each.base[each.start : each.stop] for each in self.slices])
            stop = one.stop
        return first.base[first.start : last.stop]


class Outbox(Generic[E, W]):
    """Slices on their way to one peer.

    `credit_bytes` and `frame_bytes` are the bounds of this moment.
    Invariants: `queued_bytes` is the sum over waiting slices that are not cancelled (`OutSlice.queued`);
    `in_flight_bytes` the sum over frames that left and were not acknowledged; frame numbers count up and are never used
    twice.
    """

    def __init__(self, settings: LinkSettings) -> None:
        self.queued_bytes = 0
        self.queued_slices = 0
        self.in_flight_bytes = 0
        self.rate = LinkRate()
        self._settings = settings
        self._heap: list[tuple[int, int, OutSlice[E, W]]] = []
        self._seq = 0
        self._frames: dict[int, OutFrame[E, W]] = {}
        self._frame_number = 0
        self._follow_rate()

    def put(self, one: OutSlice[E, W]) -> None:
        """Hands a slice over. Equal priorities keep the order in which they came."""
        if not self._settings.priorities:
            one.priority = 0
        self._seq += 1
        one.seq = self._seq
        self._enter(one)

    def fill(self, now: float) -> OutFrame[E, W] | None:
        """The frame to send now, of the most urgent slices; None where nothing waits or the credit is used up."""
        if not self._heap:
            return None
        room = self.credit_bytes - self.in_flight_bytes
        alone = self.in_flight_bytes == 0
        limit = min(self.frame_bytes, room)
        taken: list[OutSlice[E, W]] = []
        total = 0
        while (one := self._head()) is not None and len(taken) < MAX_RUNS:
            # The first slice may be larger than the frame, and than the credit where nothing is under way.
            fits = total + one.nbytes <= limit if taken else one.nbytes <= room or alone
            if not fits:
                break
            heapq.heappop(self._heap)
            self._leave(one)
            taken.append(one)
            total += one.nbytes
        if not taken:
            return None
        self._frame_number += 1
        departure = self.rate.departure(now, full=self.queued_slices > 0)
        frame = OutFrame(self._frame_number, tuple(taken), total, departure)
        self._frames[frame.number] = frame
        self.in_flight_bytes += total
        return frame

    def acknowledge(self, number: int, now: float) -> tuple[OutSlice[E, W], ...]:
        """The slices of a frame that arrived. Raises ProtocolError for a frame that is not under way."""
        frame = self._frames.pop(number, None)
        if frame is None:
            raise ProtocolError(f"header: Acknowledge.frame: {number} is not under way")
        self.in_flight_bytes -= frame.nbytes
        if frame.nbytes:
            self.rate.acknowledged(frame.departure, frame.nbytes, now)
            self._follow_rate()
        return frame.slices

    def in_flight(self, number: int) -> OutFrame[E, W] | None:
        """The frame of that number, if it is under way."""
        return self._frames.get(number)

    def cancel(self, one: OutSlice[E, W]) -> None:
        """A slice that need not be sent any more; if it is under way, nothing changes."""
        if one.queued:
            self._leave(one)  # It stays in the heap, without counting, until it comes to its head.
        one.cancelled = True

    def withdraw(self, wanted: Callable[[OutSlice[E, W]], bool]) -> list[OutSlice[E, W]]:
        """Cancels and returns the waiting slices that are `wanted`."""
        found = [one for _, _, one in self._heap if one.queued and wanted(one)]
        for one in found:
            self.cancel(one)
        return found

    def requeue(self) -> None:
        """After a broken connection: what was under way waits again, in its old place."""
        frames, self._frames = self._frames, {}
        self.in_flight_bytes = 0
        self.rate = LinkRate()
        self._follow_rate()
        for frame in frames.values():
            for one in frame.slices:
                if not one.cancelled:
                    self._enter(one)

    def clear(self) -> list[OutSlice[E, W]]:
        """Empties it, for a peer that is gone; returns the slices that never left.

        Those under way are not among them: the socket may still read their bytes, so nobody may ever write them.
        """
        waiting = [entry[2] for entry in self._heap if entry[2].queued]
        self._heap, self._frames = [], {}
        self.queued_bytes = self.queued_slices = self.in_flight_bytes = 0
        return waiting

    def _follow_rate(self) -> None:
        credit, frame = self._settings.credit_bytes, self._settings.frame_bytes
        self.credit_bytes = self._measured_credit() if credit is None else credit
        self.frame_bytes = self._measured_frame() if frame is None else frame

    def _measured_credit(self) -> int:
        rate = self.rate.bytes_per_s
        if rate is None:
            return FIRST_CREDIT_BYTES
        # Twice the round trip at least: a long link's rate is measured under the credit, and with less never found.
        round_trip_s = self.rate.round_trip_s
        wanted = int(rate * (round_trip_s + max(CREDIT_TIME_S, round_trip_s)))
        return min(max(wanted, MIN_CREDIT_BYTES), MAX_AUTO_CREDIT_BYTES)

    def _measured_frame(self) -> int:
        rate = self.rate.bytes_per_s
        wanted = 0 if rate is None else int(rate * FRAME_TIME_S)
        return min(max(wanted, MIN_FRAME_BYTES), MAX_AUTO_FRAME_BYTES)

    def _head(self) -> OutSlice[E, W] | None:
        while self._heap and self._heap[0][2].cancelled:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def _enter(self, one: OutSlice[E, W]) -> None:
        one.queued = True
        self.queued_bytes += one.nbytes
        self.queued_slices += 1
        heapq.heappush(self._heap, (one.priority, one.seq, one))

    def _leave(self, one: OutSlice[E, W]) -> None:
        one.queued = False
        self.queued_bytes -= one.nbytes
        self.queued_slices -= 1
