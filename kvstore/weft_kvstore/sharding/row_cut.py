"""How rows of a table are spread over shards and cut into chunks: a pure function of the description.

Row r is on shard r % shards, at place r // shards there. Of a growing table the shard is a hash of the id, which is any
uint64, and the place is the id itself. A chunk of rows that a client sends is ids, as int64 or uint64, and values;
adjacent chunks that travel together are [ids of all][values of all]. A chunk of rows that a shard sends is values, in
the order of the ids that were asked for. Every chunk but the last is full, so sizes tell bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft_graph.weft_domain import ID_BYTES
from weft_kvstore.arrays.array import Array
from weft_kvstore.description.records import GrowthDescription, KeyDescription
from weft_kvstore.tables.spread import shard_of

MOST_ROWS_A_CALL: Final = 1 << 22
"""Rows of a growing table that one push or pull may name on a shard: a table of fixed size has no more than its own."""

FEW_SHARDS: Final = 4
"""Shards of which each is looked for by itself: ids need not be sorted then."""


@dataclass(frozen=True, slots=True)
class RowCut:
    """A table's rows: `width` elements each. `rows_up`, `rows_down`: rows of a full chunk to a shard, and from it;
    `ids_up`: ids of a full chunk of a pull."""

    rows: int
    width: int
    dtype: np.dtype[Any]
    shards: int
    rows_up: int
    rows_down: int
    ids_up: int
    growth: GrowthDescription | None = None

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """What ids are: any 64-bit number where the table grows."""
        return np.dtype(np.int64 if self.growth is None else np.uint64)

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a full chunk to a shard."""
        return self.rows_up * (ID_BYTES + self.row_bytes)

    def rows_on(self, shard: int) -> int:
        """How many rows a shard has; of a growing table, how many one call may name there."""
        return MOST_ROWS_A_CALL if self.growth is not None else len(range(shard, self.rows, self.shards))

    def bytes_on(self, shard: int) -> int:
        """Bytes of as many rows; with none there is nothing to send the shard."""
        return self.rows_on(shard) * self.row_bytes

    def shards_of(self, ids: Array) -> Array:
        """The shards (n) int64 of ids (n)."""
        if self.growth is not None:
            return shard_of(ids.view(np.uint64), self.shards)
        if self.shards & (self.shards - 1) == 0:
            low: Array = ids & (self.shards - 1)  # The remainder, at a tenth of the cost.
            return low
        found: Array = ids % self.shards
        return found

    def ids_on(self, shard: int, ids: Array) -> Array:
        """Which of these ids (n) are rows of the shard (n) bool."""
        found: Array = self.shards_of(ids) == shard
        return found

    def dealt(self, ids: Array) -> Sequence[Array | None]:
        """For each shard which of these ids (n) are its rows: their positions (m) int64, ascending; None: all."""
        if self.shards == 1:
            return (None,)
        shards = self.shards_of(ids)
        if self.shards <= FEW_SHARDS:
            return [np.flatnonzero(shards == shard) for shard in range(self.shards)]
        order = np.argsort(shards.astype(np.uint16 if self.shards <= 1 << 16 else np.int64), kind="stable")
        return np.split(order, np.cumsum(np.bincount(shards, minlength=self.shards))[:-1])

    def ids_at(self, shard: int, places: Array) -> Array:
        """The ids (n) of a shard's places (n)."""
        return places if self.growth is not None else places * self.shards + shard


def row_cut(key: KeyDescription, slice_bytes: int, shards: int) -> RowCut:
    """The cut of a table: at least one row to a chunk."""
    dtype = np.dtype(key.dtype)
    width = math.prod(key.shape[1:])
    row_bytes = width * dtype.itemsize
    up = max(slice_bytes // (ID_BYTES + row_bytes), 1)
    down = max(slice_bytes // row_bytes, 1) if row_bytes else 1
    return RowCut(key.shape[0], width, dtype, shards, up, down, max(slice_bytes // ID_BYTES, 1), key.growth)


def chunks_of(count: int, a_chunk: int) -> int:
    """How many chunks so many rows take; none at all is one empty chunk."""
    return max(-(-count // a_chunk), 1)
