"""Values that clients set on a shard, in order with what is pushed: slices, and rows of tables. Pure."""

from __future__ import annotations

from collections.abc import Hashable

from weft_kvstore.shard.account import Account
from weft_kvstore.shard.parts import ShardParts
from weft_kvstore.shard.taken import Taken
from weft_kvstore.shard.unit_runs import rows_of
from weft_kvstore.tables.rows import Rows
from weft_kvstore.wire.push_run import Run
from weft_kvstore.wire.row_chunks import chunks_apart


class JobSets:
    """Those of one job. `origin` tells the parts of one set from those of another, so that each is taken in once. All
    raise ProtocolError for what this shard does not have, PushRefusedError where it contradicts what is there; what is
    refused changes nothing."""

    def __init__(self, parts: ShardParts, account: Account) -> None:
        self._parts = parts
        self._account = account

    @property
    def waiting(self) -> int:
        """Parts that were set for versions that are still to come; may be asked on any thread."""
        in_lots = sum(one.state.sets.waiting for one in list(self._parts.lots.values()))
        return in_lots + sum(one.waiting_sets for one in list(self._parts.units.values()))

    def slices(self, slot: int, run: Run, origin: Hashable) -> Taken:
        """Sets a run of slices."""
        lot = self._parts.plain(run.lot)
        laid = lot.laid(run)
        self._account.own(laid.elements)
        lot.state.sets.check(slot, run.step, laid.first, laid.stop, origin)
        changed = lot.state.sets.accept(run.step, laid, origin)
        return Taken(changed=True, ranges=[(lot, one) for one in changed])

    def chunks(self, slot: int, run: Run, origin: Hashable) -> Taken:
        """Sets rows of a table, each chunk by itself."""
        table = self._parts.table(run.lot)
        chunks = list(enumerate(chunks_apart(rows_of(table, run, self._account), table.cut.rows_up), run.first))
        for index, _ in chunks:  # all before any
            table.check_set(slot, run.step, (origin, index))
        changed = [table.accept_set(run.step, part, (origin, index)) for index, part in chunks]
        return Taken([table] if any(changed) else [], changed=True)

    def rows(self, slot: int, lot: int, version: int, rows: Rows, origin: Hashable) -> Taken:
        """Sets rows by their places, where there is one shard."""
        table = self._parts.table(lot)
        table.check_set(slot, version, origin)
        return Taken([table] if table.accept_set(version, rows, origin) else [], changed=True)
