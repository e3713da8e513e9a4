"""How rows of a table are spread over shards and cut into chunks: a pure function of the description.

Row r is on shard r % shards, at place r // shards there. A chunk of rows that a client sends is [ids][values], ids as
int64; a chunk of rows that a shard sends is values alone, in the order of the ids that were asked for. Every chunk but
the last is full, so sizes tell bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_graph.weft_domain import ID_BYTES
from weft_kvstore.description import KeyDescription
from weft_kvstore.store import Array


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

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a full chunk to a shard."""
        return self.rows_up * (ID_BYTES + self.row_bytes)

    def rows_on(self, shard: int) -> int:
        """How many rows a shard has."""
        return len(range(shard, self.rows, self.shards))

    def bytes_on(self, shard: int) -> int:
        """Bytes of the values that a shard has, were every row touched; with none there is nothing to send it."""
        return self.rows_on(shard) * self.row_bytes

    def ids_on(self, shard: int, ids: Array) -> Array:
        """Which of these ids (n) int64 are rows of the shard (n) bool."""
        found: Array = ids % self.shards == shard
        return found


def row_cut(key: KeyDescription, slice_bytes: int, shards: int) -> RowCut:
    """The cut of a table: at least one row to a chunk."""
    dtype = np.dtype(key.dtype)
    width = math.prod(key.shape[1:])
    row_bytes = width * dtype.itemsize
    up = max(slice_bytes // (ID_BYTES + row_bytes), 1)
    down = max(slice_bytes // row_bytes, 1) if row_bytes else 1
    return RowCut(key.shape[0], width, dtype, shards, up, down, max(slice_bytes // ID_BYTES, 1))


def chunks_of(count: int, a_chunk: int) -> int:
    """How many chunks so many rows take; none at all is one empty chunk."""
    return max(-(-count // a_chunk), 1)
