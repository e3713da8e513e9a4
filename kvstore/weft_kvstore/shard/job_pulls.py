"""What clients ask of a job on a shard, entry by entry, with the ids of rows that they want. Pure."""

from __future__ import annotations

from operator import mul

from weft_kvstore.arrays.array import Array
from weft_kvstore.merging.pull_wait import PullWait
from weft_kvstore.shard.account import Account
from weft_kvstore.shard.parts import ShardParts
from weft_kvstore.shard.taken import Taken
from weft_kvstore.tables.rows import is_ascending
from weft_kvstore.units.table_state import TableState
from weft_kvstore.units.unit_state import AnyUnit
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.push_run import Run
from weft_kvstore.wire.row_chunks import check_chunks, unpacked_ids


class JobPulls:
    """Takes in what is asked of one job. All raise ProtocolError for what this shard does not have."""

    def __init__(self, parts: ShardParts, shard: int, account: Account) -> None:
        self._parts = parts
        self._shard = shard
        self._account = account

    def ask(self, wait: PullWait, lot: int, first: int, count: int, chunks: int) -> list[AnyUnit]:
        """Takes in an entry of a pull: the units that have to answer it. Slices of plain lots are open in it then.

        A pull of a table waits for `chunks` chunks of ids first; no other pull has any.
        """
        unit = self._parts.units.get(lot)
        if isinstance(unit, TableState):
            check_chunks(unit.cut.rows_on(self._shard), unit.cut.ids_up, chunks, unit.spec.key)
            if wait.open or wait.open_units:
                raise ProtocolError(f"Pull.lot: {lot} is a table, and is asked for together with others")
            wait.expect(lot, chunks)
            return []
        if chunks:
            raise ProtocolError(f"Pull.chunks: {chunks} of lot {lot}, which is no table")
        if wait.chunks or lot in wait.open_units:
            raise ProtocolError(f"Pull.lot: {lot} is asked for twice, or beside a table")
        if unit is not None:
            wait.open_units.add(lot)
            return [unit]
        self._parts.plain(lot).check_range(first, count, "Pull.first")
        wait.want(lot, first, first + count)
        return []

    def ids(self, wait: PullWait, run: Run) -> Taken:
        """Takes in a run of the ids of a pull."""
        table = self._parts.units.get(run.lot)
        if not isinstance(table, TableState) or run.lot not in wait.open_units or run.chunks != wait.chunks:
            raise ProtocolError(f"Push.request: {wait.request} does not ask for {run.chunks} chunks of lot {run.lot}")
        ids = unpacked_ids(run, table.cut, self._shard, table.spec.key)
        for one in ids:
            self._account.own(one)
        if not wait.add_ids(run.first, ids):
            return Taken(pull=wait)
        if not is_ascending(wait.places):
            raise ProtocolError(f"ids: rows of key {table.spec.key!r} that do not ascend")
        return Taken(self.rows(wait, run.lot, wait.places), pull=wait)

    def rows(self, wait: PullWait, lot: int, places: Array) -> list[AnyUnit]:
        """Takes in a pull of rows by their places. Returns as `ask` does."""
        wait.ids = places
        return [self._parts.table(lot)]

    def answer_bytes(self, wait: PullWait) -> int:
        """What the answer to a pull of rows takes until it has arrived; other answers take no memory of their own."""
        tables = [self._parts.units[number] for number in wait.open_units]
        arrays = [len(one.spec.state) if wait.state else 1 for one in tables]
        rows = [one.cut.row_bytes if isinstance(one, TableState) else 0 for one in tables]
        return 0 if wait.ids is None else len(wait.ids) * sum(map(mul, arrays, rows))
