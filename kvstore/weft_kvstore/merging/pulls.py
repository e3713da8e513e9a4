"""Pulls that wait on a shard, and what answers them. Values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft_kvstore.arrays import Array, Ranges
from weft_kvstore.wire.messages import Reading
from weft_kvstore.wire.out_run import OneBuffer, Pinnable

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
        self.priority = 0
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

    def answered(self, bucket: int, first: int, stop: int) -> None:
        """These slices have."""
        ranges = self.open[bucket]
        ranges.remove(first, stop)
        if not ranges:
            del self.open[bucket]

    @property
    def places(self) -> Array:
        """The ids that have come, one chunk behind the other."""
        return np.concatenate([self._parts[number] for number in sorted(self._parts)])

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
