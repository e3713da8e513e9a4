"""What waits on a shard: pulls until they are answered, and long work, cut into pieces between which the socket is
served. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from weft_kvstore.arrays import Array, Ranges
from weft_kvstore.wire.messages import Reading
from weft_kvstore.wire.outbox import OneBuffer, Pinnable

# --- A pull on a shard, until it is answered --------------------------------------------------------------------------


class PullWait:
    """A pull on this shard by `slot`; `link` is whoever asked. `open` has, by bucket, the slices that are not answered;
    `open_units` the buckets that answer as one and have not. `compressed`: values may be encoded for it.

    Of a table, `ids` are the places (n) of the rows on this shard, once all `chunks` of them have come.
    """

    __slots__ = (
        "_parts",
        "chunks",
        "compressed",
        "dropped",
        "entries",
        "ids",
        "ids_bytes",
        "link",
        "open",
        "open_units",
        "place",
        "priority",
        "reading",
        "request",
        "slot",
        "state",
        "version",
    )

    def __init__(  # what a message says of it
        self,
        link: Any,
        request: int,
        version: int,
        *,
        slot: int,
        state: bool,
        reading: Reading,
        compressed: bool = False,
        priority: int = 0,
    ) -> None:
        self.link = link
        self.request = request
        self.version = version
        self.slot = slot
        self.state = state
        self.reading = reading
        self.compressed = compressed
        self.place = False
        """Whether values may be written to the places of their keys."""
        self.priority = priority
        """The call's own: answers to a higher one are sent first."""
        self.entries = 0
        """How many runs were asked for, of any length: what it costs to look at."""
        self.ids: Array | None = None
        self.ids_bytes = 0
        self.chunks = 0
        self.open: dict[int, Ranges] = {}
        self.open_units: set[int] = set()
        self.dropped = False
        self._parts: dict[int, Array] = {}

    @property
    def settled(self) -> bool:
        """Whether the steps of every slot count, where slots go on by themselves."""
        return self.reading is Reading.SETTLED

    @property
    def is_answered(self) -> bool:
        return not self.open and not self.open_units

    def drop(self) -> None:
        """It was given up: nothing is kept for it."""
        self.dropped = True
        self.open = {}
        self.open_units = set()
        self.ids = None
        self._parts = {}

    def want(self, bucket: int, first: int, stop: int) -> None:
        """These slices have to answer."""
        ranges = self.open.get(bucket)
        if ranges is None:
            self.open[bucket] = Ranges((first, stop))
        else:
            ranges.add(first, stop)

    def answered(self, bucket: int, first: int, stop: int) -> bool:
        """These slices have. Whether that was all of the pull."""
        ranges = self.open[bucket]
        if ranges.remove(first, stop):
            del self.open[bucket]
        return not self.open and not self.open_units

    @property
    def places(self) -> Array:
        """The ids that have come, one chunk behind the other."""
        parts = [self._parts[number] for number in sorted(self._parts)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def expect(self, bucket: int, chunks: int) -> None:
        """So many chunks of ids will come, and then the table can answer."""
        self.chunks = chunks
        self.open_units.add(bucket)

    def add_ids(self, first: int, chunks: list[Array]) -> bool:
        """Takes in chunks of ids, each once. True when these were the last that were missing."""
        before = len(self._parts)
        for number, ids in enumerate(chunks, first):
            if number not in self._parts:
                self._parts[number] = ids
                self.ids_bytes += ids.nbytes
        return before < self.chunks == len(self._parts)


# --- What answers a pull, or a part of it -----------------------------------------------------------------------------


class Answer(NamedTuple):
    """Slices, or chunks, from `first` on of a bucket at a version: the pull's array number `array`. Part i of them has
    bytes `bounds[i]` to `bounds[i + 1]` of `source` and priority `priorities[i]`, or `priority` where those are None.

    `compressed`: the bytes are encoded. They are parts of `held` from `part` on, which are lent until they arrive;
    None where the bytes are the pull's own.
    """

    array: int
    bucket: int
    version: int
    first: int
    bounds: Array
    source: OneBuffer
    held: Pinnable | None
    priority: int
    priorities: Array | None = None
    part: int = 0
    compressed: bool = False

    @property
    def parts(self) -> int:
        return len(self.bounds) - 1


# --- Work on a shard that may take long, cut into pieces: between two of them the socket is looked at -----------------


PIECE_ELEMENTS: Final = 1 << 20
"""Elements that a piece computes, of first values or of an update by a rule of a few nodes: some 10 ms."""

BUCKET_PIECES: Final = 2
"""Such pieces that a plain bucket's update takes at once: it crosses memory once, and is what a shard does most."""

PIECE_NODES: Final = 16
"""Nodes of a user's rule that may meet as many elements; with more of them a piece has fewer."""

PIECE_CALLS: Final = 128
"""Slices that such a rule updates in a piece, however small: each is a call of its own, and all of them some 20 ms."""

PIECE_BYTES: Final = 1 << 23
"""What a piece counts for, at most."""

ENDED_A_STEP: Final = 256
"""Tasks that may end in one step: more than are asked for in one round of the socket."""


class Work:
    """Tasks that are carried out one after the other: what is begun is ended before the next one begins. A task stops
    after each piece.

    Invariant: `queued` while it is in a work queue, and then `todo` has something. `turn` is its place there.
    """

    __slots__ = ("_bytes", "priority", "queued", "todo", "turn")

    def __init__(self, priority: int, piece_bytes: int = PIECE_BYTES) -> None:
        self.priority = priority
        self._bytes = piece_bytes
        self.queued = False
        self.turn = 0
        self.todo: deque[Iterator[None]] = deque()

    @property
    def piece_bytes(self) -> int:
        """About how many bytes a piece works on."""
        return self._bytes

    def step(self) -> None:
        """The next piece. Tasks that end before their next one, as those do that were given up, take no turn each: who
        asks and gives up again must not fill the memory. Raises what a task raises; it is over then."""
        for _ in range(ENDED_A_STEP):
            if not self.todo:
                return
            task = self.todo[0]
            try:
                next(task)
            except BaseException as error:
                if self.todo and self.todo[0] is task:  # A job that has failed has forgotten its work.
                    self.todo.popleft()
                if not isinstance(error, StopIteration):
                    raise
            else:
                return


# --- Who computes the pieces of an update -----------------------------------------------------------------------------


Task = Callable[[], None]


class Computing(Protocol):
    """Carries out tasks that do not depend on each other, as many as `lanes` at the same time."""

    lanes: int

    def run(self, tasks: Sequence[Task]) -> None:
        """Carries out all of them, in any order, and returns when all have ended. Raises what the first one raised."""


class InTurn:
    """One task after the other."""

    lanes = 1

    def run(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            task()
