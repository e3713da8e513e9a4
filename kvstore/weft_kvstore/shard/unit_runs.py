"""The bytes of a run that is of one key, whole or a table, as arrays. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.lot.part import decoded
from weft_kvstore.quotas import Holds
from weft_kvstore.shard.account import Account
from weft_kvstore.tables.rows import Rows
from weft_kvstore.units.table_growth import promised
from weft_kvstore.units.table_state import TableState
from weft_kvstore.units.whole_state import WholeState
from weft_kvstore.wire.cargo import Cargo
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.push_run import Run
from weft_kvstore.wire.row_chunks import unpacked_rows


def slices_of(unit: WholeState, run: Run) -> list[tuple[int, Array]]:
    """The slices of a run of a whole key, each with its number. Raises ProtocolError."""
    cut = unit.cut
    if run.stop > cut.count:
        told = f"slices {run.first} to {run.stop - 1} of key {unit.spec.key!r}"
        raise ProtocolError(f"Push.first: {told}; this shard has 0 to {cut.count - 1}")
    if unit.pushed is not None and run.cargo == Cargo.GRADIENT:
        elements = decoded(unit.pushed, run, lambda slice_: f"key {unit.spec.key!r}, slice {slice_}")
        ends = (unit.pushed.bounds[run.first : run.stop + 1] - unit.pushed.bounds[run.first]).tolist()
        return [(run.first + at, elements[low:high]) for at, (low, high) in enumerate(pairwise(ends))]
    if cut.length(run.first, run.count) != run.payload.nbytes:
        told = f"{run.count} slices from {run.first} of key {unit.spec.key!r}"
        raise ProtocolError(f"Push.nbytes: {run.payload.nbytes} for {told}, not {cut.length(run.first, run.count)}")
    begin = cut.start(run.first)
    bounds = [cut.start(index) - begin for index in range(run.first, run.stop + 1)]
    return [
        (run.first + at, _writable(run.payload[bounds[at] : bounds[at + 1]], unit.spec.dtype))
        for at in range(run.count)
    ]


def rows_of(table: TableState, run: Run, account: Account) -> Rows:
    """A run of rows, to be written, which counts as the job's, with what it may bring into being. They are copied where
    the payload is no place for them. Raises ProtocolError."""
    rows = unpacked_rows(run, table.cut, table.shard, table.spec.key)
    more = promised(table, run, exact=False)
    if not all(array.flags.writeable and array.flags.aligned for array in (rows.ids, rows.values)):
        rows = Rows(rows.ids.copy(), rows.values.copy())
        more += Holds(rows.nbytes)
    elif rows.ids.base is None:  # Places on the shard, where they are not the ids themselves.
        more += Holds(rows.ids.nbytes)
    # Views of views keep alive what lies beneath.
    account.keep(rows.values if rows.values.base is None else rows.values.base, more.nbytes, more.rows)
    return rows


def _writable(payload: memoryview, dtype: np.dtype[Any]) -> Array:
    """The payload as an array that a merge may write: itself where it can be, else a copy."""
    array: Array = np.frombuffer(payload, dtype)
    return array if array.flags.writeable and array.flags.aligned else array.copy()
