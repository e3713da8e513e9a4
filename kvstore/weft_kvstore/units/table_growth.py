"""What a job's tables have come to on a shard, and what a push may still add to them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from weft_kvstore.quotas import Holds
from weft_kvstore.tables.growing_rows import GrowingRows
from weft_kvstore.units.table_state import TableState
from weft_kvstore.wire.cargo import Cargo
from weft_kvstore.wire.push_run import Run
from weft_kvstore.wire.row_chunks import unpacked_rows

INDEX_ROW_BYTES: Final = 24
"""Of a row that comes into being: its id, and its place in the index, which is at least half full."""


def grown(tables: Iterable[TableState]) -> Holds:
    """Rows of growing tables that are here, with their state and their index, rows set for versions to come, and what
    of sums under way no message holds, with what may come of it."""
    found = Holds()
    for one in tables:
        ahead = one.ahead_bytes
        rows, made = one.held, one.rows_made
        if isinstance(rows, GrowingRows):
            found += Holds(rows.stop * one.bytes_of_a_row + rows.index_bytes, 0, rows.count)
        if ahead:
            found += Holds(ahead)
        if made:
            found += Holds(made * (one.cut.row_bytes + one.cut.id_dtype.itemsize)) + _to_come(one, made)
    return found


def promised(table: TableState, run: Run, *, exact: bool) -> Holds:
    """What rows that a push or a set names may add to a growing table: each of them, or `exact` those that it lacks."""
    if table.cut.growth is None or run.cargo == Cargo.IDS or not run.chunks:
        return Holds()
    if exact:
        found = unpacked_rows(run, table.cut, table.shard, table.spec.key)
        rows = int(np.count_nonzero(table.held.find(found.ids) < 0))
    else:
        rows = run.payload.nbytes // (table.cut.row_bytes + table.cut.id_dtype.itemsize)
    return _to_come(table, rows)


def _to_come(table: TableState, rows: int) -> Holds:
    """So many rows, once they have come into being: those of a table of a known size are there from the first."""
    if table.cut.growth is None:
        return Holds()
    return Holds(rows * (table.bytes_of_a_row + INDEX_ROW_BYTES), 0, rows)
