"""The rows of a run of a table. Pure."""

from __future__ import annotations

from weft_kvstore.quotas import Holds
from weft_kvstore.shard.account import Account
from weft_kvstore.tables.rows import Rows
from weft_kvstore.units.table_growth import promised
from weft_kvstore.units.table_state import TableState
from weft_kvstore.wire.push_run import Run
from weft_kvstore.wire.row_chunks import unpacked_rows


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
