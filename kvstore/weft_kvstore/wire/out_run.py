"""Runs that are to be sent, and arrays whose bytes travel while others want to write them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, Protocol, TypeVar

import numpy as np

from weft_kvstore.arrays import Array, Buffer, bytes_of

# --- What waits in an outbox: adjacent slices that are sent in their order, together or in parts ----------------------


E = TypeVar("E")
W = TypeVar("W")


class Source(Protocol):
    """Where the bytes of a run lie. They stay as they are until they are acknowledged."""

    def cut(self, start: int, stop: int) -> Sequence[Buffer]:
        """Bytes `start` to `stop`, in parts that are one behind the other."""


class OneBuffer:
    """Bytes that lie in one place."""

    __slots__ = ("base",)

    def __init__(self, base: memoryview) -> None:
        self.base = base

    def cut(self, start: int, stop: int) -> Sequence[Buffer]:
        return (self.base[start:stop],)


CALL_PRIORITY: Final = 1 << 32
"""What a call's priority is worth: more than any two described priorities differ, which are within 32 bits. The rank of
a slice is its described priority - a call's priority * this; the lowest goes first."""

NOTHING: Final = OneBuffer(memoryview(b""))
"""The source of what will not be sent."""


class OutRun(Generic[E, W]):
    """Slices `first` to `first + count` of what its `entry` (an E) says; slice `first + i` has bytes `bounds[i]` to
    `bounds[i + 1]` of its source. `owner` (a W) is the caller's.

    `priorities` of the slices ascend; where all have one, it is `priority` and they are None. While it waits, `sent` of
    the slices have left, and `priority` is that of the first that has not.
    """

    __slots__ = (
        "bounds",
        "cancelled",
        "count",
        "entry",
        "first",
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
        self.bounds = bounds
        self.source = source
        self.priorities = priorities
        self.priority = priority if priorities is None else int(priorities[0])
        self.owner = owner
        self.sent = 0
        self.seq = 0
        self.queued = False
        self.cancelled = False

    @property
    def nbytes(self) -> int:
        """Of the slices that have not left."""
        return int(self.bounds[-1] - self.bounds[self.sent])

    @property
    def waiting(self) -> int:
        """How many slices have not left."""
        return self.count - self.sent

    def fitting(self, limit: int) -> int:
        """How many slices have at most so many bytes together."""
        sent = self.sent
        if self.bounds[-1] - self.bounds[sent] <= limit:
            return self.count - sent
        return int(np.searchsorted(self.bounds[sent + 1 :], self.bounds[sent] + limit, side="right"))

    def before(self, priority: int, *, equal: bool) -> int:
        """How many slices go before something of that priority, or of an `equal` one."""
        if self.priorities is None:
            return self.count - self.sent
        found = np.searchsorted(self.priorities[self.sent :], priority, side="right" if equal else "left")
        return max(int(found), 1)

    def leave(self, count: int) -> None:
        """So many more slices have left."""
        self.sent += count
        if self.priorities is not None and self.sent < self.count:
            self.priority = int(self.priorities[self.sent])

    def part(self, first: int, count: int) -> OutRun[E, W]:
        """Slices of it, numbered from 0 in it, that have left and must do so again."""
        priorities = None if self.priorities is None else self.priorities[first : first + count]
        again: OutRun[E, W] = OutRun(
            self.entry,
            self.first + first,
            self.bounds[first : first + count + 1],
            self.source,
            priority=self.priority,
            owner=self.owner,
            priorities=priorities,
        )
        again.seq = self.seq
        return again


# --- Arrays whose bytes travel while others want to write them --------------------------------------------------------


class Pinnable:
    """An array in parts, whose bytes may be on their way to a peer: `pinned` (parts) counts how often each is. A part
    is not written while lent. `source` has the bytes, from `start` on."""

    __slots__ = ("array", "pinned", "source", "start")

    def __init__(self, array: Array, source: OneBuffer, start: int, parts: int) -> None:
        self.array = array
        self.source = source
        self.start = start
        self.pinned = np.zeros(parts, np.int32)

    def is_lent(self, first: int, stop: int) -> bool:
        """Whether any of these parts is."""
        return bool(self.pinned[first:stop].any())

    def copied(self) -> Pinnable:
        """The same elsewhere, lent to nobody."""
        return lendable(self.array.copy(), len(self.pinned))


class Pin:
    """Parts `first` and those behind it, lent until they have arrived; nothing where no array is held."""

    __slots__ = ("_first", "held")

    def __init__(self, held: Pinnable | None, first: int, count: int) -> None:
        self.held = held
        self._first = first
        if held is not None:
            held.pinned[first : first + count] += 1

    def part(self, first: int) -> Pin:
        """The pin of its parts from `first` on, which stay pinned as often as they are."""
        part = Pin(None, self._first + first, 0)
        part.held = self.held
        return part

    def give_back(self, first: int, count: int) -> None:
        """So many of the pin's parts have arrived, or never left; numbered from 0 in it."""
        if self.held is not None:
            self.held.pinned[self._first + first : self._first + first + count] -= 1


def lendable(array: Array, parts: int) -> Pinnable:
    """A C-contiguous array, by itself."""
    return Pinnable(array, OneBuffer(bytes_of(array)), 0, parts)
