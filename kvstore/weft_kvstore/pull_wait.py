"""A pull on a shard, until it is answered. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft_kvstore.store import Array


class PullWait:
    """A pull on this shard by `slot`; `link` is whoever asked. `open` has the numbers of units that have not answered.

    Of a table, `ids` are the places (n) of the rows on this shard, once all `chunks` of them have come.
    """

    __slots__ = (
        "_parts",
        "chunks",
        "dropped",
        "ids",
        "ids_bytes",
        "key",
        "link",
        "open",
        "request",
        "settled",
        "slot",
        "state",
        "version",
    )

    def __init__(
        self, link: Any, request: int, key: int, version: int, *, slot: int, state: bool, settled: bool
    ) -> None:
        self.link = link
        self.request = request
        self.key = key
        self.version = version
        self.slot = slot
        self.state = state
        self.settled = settled
        self.ids: Array | None = None
        self.ids_bytes = 0
        self.chunks = 0
        self.open: set[int] = set()
        self.dropped = False
        self._parts: dict[int, Array] = {}

    def drop(self) -> None:
        """It was given up: nothing is kept for it."""
        self.dropped = True
        self.open = set()
        self.ids = None
        self._parts = {}

    @property
    def places(self) -> Array:
        """The ids that have come, one chunk behind the other."""
        return np.concatenate([self._parts[number] for number in sorted(self._parts)])

    def expect(self, unit: int, chunks: int) -> None:
        """So many chunks of ids will come, and then the unit can answer."""
        self.chunks = chunks
        self.open.add(unit)

    def add_ids(self, first: int, chunks: list[Array]) -> bool:
        """Takes in chunks of ids, each once. True when these were the last that were missing."""
        before = len(self._parts)
        for number, ids in enumerate(chunks, first):
            if number not in self._parts:
                self._parts[number] = ids
                self.ids_bytes += ids.nbytes
        return before < self.chunks == len(self._parts)
