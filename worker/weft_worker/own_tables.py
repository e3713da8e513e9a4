"""The tables of a job without shards, which its one worker keeps: a shard's tables, without messages or a thread."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from weft_kvstore.arrays import Array, Segment
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.errors import PushRefusedError, StoreError, StoreRefusedError
from weft_kvstore.futures import OtherThread
from weft_kvstore.rows.rows import Rows, check_ids, distinct_ids, last_rows, spread_rows, summed_rows
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.snapshot import Capture, Captured, MissedError, restore
from weft_kvstore.sharding import routing_of
from weft_kvstore.snapshot_files import Snapshot
from weft_kvstore.store import ClientStatistics
from weft_kvstore.tables import TableState

T = TypeVar("T")


class OwnTables:
    """To be used by one thread at a time, which is who calls; `there` is how others have something done meanwhile.

    A call reads or changes the rows as they are now, at once.
    """

    def __init__(
        self,
        description: StoreDescription,
        tables: Iterable[KeyDescription],
        snapshot: Snapshot | None,
        there: OtherThread,
    ) -> None:
        """Goes on from a `snapshot`, where there is one. Raises SnapshotError, MemoryError."""
        keys = tuple(msgspec.structs.replace(key, compression=None) for key in tables)
        one = msgspec.structs.replace(description, shards=("own",), keys=keys, compression=None)
        self._shard = JobShard(one, 0)
        if snapshot is not None:
            restore(self._shard, snapshot)
        self._there = there
        self._keys = {key.key: key for key in keys}
        routing = routing_of(one)
        self._tables: dict[str, TableState] = {
            key.key: self._shard.tables[routing.bucket_of[place]] for place, key in enumerate(keys)
        }
        self._pulled = self._pushed = 0

    def rows(self, key: str, ids: Array, out: Array | None = None) -> Array:
        """Rows (n, ...) of ids (n) in any order, repeated, or negative, which are zeros: in `out`, or a new array.
        Raises StoreError where one was never set, StoreRefusedError where there is none."""
        return self._read(key, ids, (None,), out)[0]

    def state_rows(self, key: str, ids: Array) -> dict[str, Array]:
        """The optimizer's state of the same rows, by its names."""
        names = self._tables[key].spec.state
        return dict(zip(names, self._read(key, ids, names), strict=True))

    def update(self, step: int, gradients: Mapping[str, tuple[Array, Array]]) -> None:
        """Applies a step's gradients, ids (n) and rows (n, ...), of which those of one id are added; the others' tables
        have none. Raises what the rule raises."""
        for name, table in self._tables.items():
            if not table.spec.slots:
                continue
            given = gradients.get(name)
            if given is None:
                table.accept(0, step, Segment(0, 1, None))
            else:
                ids, rows = given[0], given[1].reshape(len(given[0]), table.layout.width)
                count = check_ids(ids, self._keys[name], f"step {step} of key {name!r}")
                found = summed_rows(ids, rows, count)
                self._pushed += len(found.ids)
                table.accept(0, step, Segment(0, 1, [self._placed(table, found)]))
            while table.version <= step and _ended(table.merging()):
                pass

    def set_rows(self, key: str, version: int, ids: Array, rows: Array) -> None:
        """Sets rows, once the table is at that version. Raises StoreRefusedError where it has passed."""
        table = self._tables[key]
        check_ids(ids, self._keys[key], f"values of key {key!r}")
        found = last_rows(ids, rows.reshape(len(ids), table.layout.width))
        try:
            with np.errstate(all="ignore"):
                table.set(0, version, self._placed(table, found))
        except PushRefusedError as error:
            raise StoreRefusedError(str(error)) from None

    def capture(self, step: int, done: Callable[[Captured | MissedError], None], since: int | None) -> None:
        """See `OwnStore.capture`."""
        Capture(self._shard, step, done, self._there, since=since)

    def statistics(self) -> ClientStatistics:
        return ClientStatistics(rows_pushed=self._pushed, rows_pulled=self._pulled)

    def close(self) -> None:
        self._shard.close()

    def _read(self, key: str, ids: Array, names: Iterable[str | None], out: Array | None = None) -> list[Array]:
        table, described = self._tables[key], self._keys[key]
        own, index = distinct_ids(ids, check_ids(ids, described, f"rows of key {key!r}"))
        places = self._places(table, own)
        if table.has_uninitialized(places):
            raise StoreError(f"key {key!r}: not all of the rows were ever set")
        self._pulled += len(places)
        found: list[Array] = []
        for name in names:
            rows = _ended(table.reading(places, name))
            if index is not None:
                rows = spread_rows(rows, index)
            if out is not None:
                out.reshape(len(ids), table.layout.width)[...] = rows
                rows = out
            found.append(rows.reshape(len(ids), *described.shape[1:]))
        return found

    def _placed(self, table: TableState, rows: Rows) -> Rows:
        return Rows(self._places(table, rows.ids), rows.values)

    @staticmethod
    def _places(table: TableState, ids: Array) -> Array:
        """Where the rows of ids lie: there is one shard."""
        return ids if table.layout.growth is None else ids.view(table.layout.id_dtype)


def _ended(work: Generator[Any, None, T]) -> T:
    """What the work gives once all its pieces are done."""
    with np.errstate(all="ignore"):  # What overflows is the user's to see in the values.
        while True:
            try:
                next(work)
            except StopIteration as end:
                found: T = end.value
                return found
