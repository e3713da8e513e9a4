"""What a shard holds of a job at one version: captured while training goes on, and brought back. Pure.

A slice is captured when it reaches the version, or at once where it is there. Nothing is copied then: its bytes are
pinned, as those of an answer are, so who writes the slice next writes a copy. A table's rows are taken out in
row groups as the file is written; what changes before that is copied first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from weft_kvstore.arrays import Array, Segment, ranges_where
from weft_kvstore.bucket.bucket import Bucket
from weft_kvstore.bucket.values import PendingSegments, Pin
from weft_kvstore.compression import residual_array
from weft_kvstore.errors import StoreError
from weft_kvstore.futures import OtherThread
from weft_kvstore.rows.row_arrays import Columns, RowCapture, group_rows
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.snapshot_files import (
    GONE,
    ROWS,
    UPDATES,
    VALUE,
    CapturedArray,
    Snapshot,
    SnapshotError,
    SnapshotReader,
    captured_array,
    check_marker,
    write_file,
)
from weft_kvstore.store import LossScale, loss_scale_of
from weft_kvstore.tables import TableState

RESIDUAL: Final = residual_array(None)

_log = logging.getLogger("weft.shard")


class MissedError(Exception):
    """The version has passed, or could not be captured; the message names a key and the version that it is at."""


class Captured(NamedTuple):
    """What a process holds at one version. `arrays` gives it, once, on any thread, until `release`. The loss scale is
    that of its step, where there is one. `since`: of tables it has only what has changed since that step."""

    arrays: Callable[[], list[CapturedArray]]
    loss_scale: LossScale | None = None
    release: Callable[[], None] = lambda: None
    since: int | None = None


class Capture:
    """What `shard` holds at version `step`, `without` some keys. `done` is called with it on the shard's thread, and
    has to be quick; what it is given is to be released. `since`: of tables only what has changed since the capture at
    that step, where all of them know it. A shard has one capture at a time: one that is not complete ends with the
    next. What fails ends the capture, and not the training whose step brought it."""

    def __init__(
        self,
        shard: JobShard,
        step: int,
        done: Callable[[Captured | MissedError], None],
        shard_thread: OtherThread,
        *,
        without: Collection[str] = (),
        since: int | None = None,
    ) -> None:
        shard.end_capture()
        self._shard, self._step, self._done = shard, step, done
        self._shard_thread, self._without = shard_thread, without
        if not shard.tables or not all(table.rows.changes.knows(since) for table in shard.tables.values()):
            since = None
        self._since = since
        self._views = {
            number: {UPDATES: PendingSegments(np.arange(bucket.count + 1))} for number, bucket in shard.buckets.items()
        }
        """By bucket and array."""
        self._pins: list[tuple[Pin, int]] = []
        """What keeps them so, each with how many slices it has."""
        self._tables: dict[int, tuple[RowCapture, Columns]] = {}
        """Rows, and what is known beside them."""
        self._left = 1 + sum(bucket.count for bucket in shard.all_buckets.values())
        """Slices that have not reached the version, and 1 until all were looked at."""
        for bucket in shard.all_buckets.values():
            _, beyond = bucket.at_version(step)
            if beyond.any():
                at, self._left = int(beyond.argmax()), 0
                where = bucket.spec.key_named(at)
                done(MissedError(f"{where} is at version {bucket.versions[at]} already, or changes"))
                return
        shard.end_capture = self._drop
        for bucket in shard.all_buckets.values():
            bucket.reached = partial(self._reached, bucket)
        for bucket in shard.all_buckets.values():
            for first, stop in ranges_where(bucket.at_version(step)[0]):
                self._reached(bucket, step, first, stop)
        self._reached(None, step, 0, 1)

    def _drop(self) -> None:
        """Ends it, unless it is complete."""
        if self._left:
            self._end()
            self._release()

    def _reached(self, bucket: Bucket | TableState | None, version: int, first: int, stop: int) -> None:
        """Slices of a bucket, or a table, are at a version; None: all were looked at."""
        if version != self._step or not self._left:
            return
        try:
            if isinstance(bucket, TableState):
                self._take_rows(bucket)
            elif bucket is not None:
                self._pin(bucket, first, stop)
            self._left -= stop - first
            if not self._left:
                # No slice holds the step yet, so nobody has agreed on it: its loss scale is that step's.
                self._end()
                scale = None if self._shard.gate is None else self._shard.gate.loss_scale
                self._done(Captured(self._arrays, scale, lambda: self._shard_thread.soon(self._release), self._since))
        except Exception as error:  # noqa: BLE001  # a callback's outermost frame
            _log.exception("the snapshot of step %d failed on shard %d", self._step, self._shard.shard)
            self._end()
            self._release()
            with suppress(Exception):  # Where no thread starts, say, nobody can be told of it either.
                self._done(MissedError(f"shard {self._shard.shard} could not capture it: {error!r}"))

    def _take_rows(self, table: TableState) -> None:
        table.reached = None
        marks: Columns = {}
        rows, gone = table.rows.capture(self._step, self._since)
        self._tables[table.spec.number] = rows, marks  # What fails from here on releases them.
        gone = table.layout.ids_at(table.shard, gone).view(np.int64)
        marks |= table.rows.marks() | {GONE: gone, UPDATES: np.array([table.updates])}

    def _pin(self, bucket: Bucket, first: int, stop: int) -> None:
        """Keeps slices as they are now."""
        update, views = bucket.update, self._views[bucket.spec.number]
        for name, values in ((VALUE, update.values), *update.state.items()):
            cuts = zip(values.sections(first, stop), values.elements(first, stop), strict=True)
            for (low, high, block, index, _), (_, _, elements) in cuts:
                views.setdefault(name, PendingSegments(bucket.bounds)).put(Segment(low, high, elements))
                self._pins.append((Pin(block, index, high - low), high - low))
        if update.residual is not None:
            residual = update.residual[bucket.bounds[first] : bucket.bounds[stop]].copy()
            views.setdefault(RESIDUAL, PendingSegments(bucket.bounds)).put(Segment(first, stop, residual))
        views[UPDATES].put(Segment(first, stop, update.updates[first:stop].copy()))

    def _end(self) -> None:
        self._left = 0
        self._shard.end_capture = lambda: None
        for bucket in self._shard.all_buckets.values():
            bucket.reached = None

    def _arrays(self) -> list[CapturedArray]:
        """All that was captured. On any thread but the shard's, until it is released."""
        found: list[CapturedArray] = []
        for number, of_bucket in self._views.items():
            bucket = self._shard.buckets[number]
            for key_range in bucket.spec.partition.ranges:
                key = bucket.spec.keys[key_range.key_index].key
                for name, some in of_bucket.items() if key not in self._without else ():
                    start = key_range.number if name == UPDATES else key_range.start
                    values = [each.elements for each in some.take(key_range.first, key_range.stop)]
                    size = sum(len(one) for one in values)
                    found.append(CapturedArray(name, key, start, size, str(values[0].dtype), values))
        for number, captured in self._tables.items():
            found += self._table_arrays(self._shard.tables[number], *captured)
        return found

    def _table_arrays(self, table: TableState, rows: RowCapture, marks: Columns) -> Iterator[CapturedArray]:
        """What a shard has of a table, its rows in row groups."""
        key, columns = table.spec.key, table.rows.columns(np.empty(0, np.int64))
        for name, array in marks.items():
            yield captured_array(name, key, 0, array.reshape(-1))
        widths = {name: int(np.prod(array.shape[1:])) for name, array in columns.items()}
        count = group_rows(rows.left, sum(widths[name] * array.itemsize for name, array in columns.items()))
        group: Columns = {}

        def column(name: str) -> Iterator[Array]:
            """Of the next row group, which is taken out when its ids are written: they are its first array."""
            if name == ROWS:
                group.update(self._shard_thread.do(lambda: rows.take(count)))
                group[ROWS] = table.layout.ids_at(table.shard, group[ROWS]).view(np.int64)
            yield group.pop(name)

        for begin in range(0, rows.left, count):
            some = min(count, rows.left - begin)
            yield CapturedArray(ROWS, key, begin, some, "int64", column(ROWS))
            for name, array in columns.items():
                yield CapturedArray(name, key, begin, some * widths[name], str(array.dtype), column(name))

    def _release(self) -> None:
        for number, (rows, _) in self._tables.items():
            self._shard.tables[number].rows.release(rows)
        for pin, count in self._pins:
            pin.release(0, count)
        self._tables.clear()
        self._views.clear()
        self._pins.clear()


def all_captured(
    count: int, done: Callable[[Captured | MissedError], None]
) -> Callable[[Captured | MissedError], None]:
    """What several stores of a process hold at one version, as one: a function that may be called on any thread with
    each of so many. One that was missed ends all of them."""
    found: list[Captured | MissedError] = []
    left = list(range(count))

    def add(one: Captured | MissedError) -> None:
        found.append(one)
        if left.pop():  # Of all threads one takes the last, which is 0.
            return
        captured = [each for each in found if isinstance(each, Captured)]

        def release() -> None:
            for each in captured:
                each.release()

        missed = next((each for each in found if isinstance(each, MissedError)), None)
        if missed is not None:
            release()
            done(missed)
            return
        scale = next((each.loss_scale for each in captured if each.loss_scale is not None), None)
        since = next((each.since for each in captured if each.since is not None), None)  # One of them has all tables.
        done(Captured(lambda: [one for each in captured for one in each.arrays()], scale, release, since))

    return add


def saved(folder: str, name: str, captured: Captured, *, job: str, step: int) -> dict[str, Any]:
    """Writes what a process holds, and releases it. What is to be reported: the file's name, length and digest, or why
    there is none."""
    try:
        check_marker(folder)
        file = write_file(folder, name, captured.arrays(), {"job": job, "step": str(step)})
    except (SnapshotError, StoreError, MemoryError) as error:
        return {"step": step, "error": str(error) or type(error).__name__}
    finally:
        captured.release()
    done: dict[str, Any] = {"step": step, "file": msgspec.to_builtins(file), "since": captured.since}
    if captured.loss_scale is not None:
        done |= {"loss_scale": captured.loss_scale.scale, "finite_steps": captured.loss_scale.good}
    return done


def restore(shard: JobShard, snapshot: Snapshot) -> None:
    """Has a job that nobody has pushed to go on from a snapshot. Raises SnapshotError, MemoryError."""
    step = snapshot.step
    with SnapshotReader(snapshot) as reader:
        for bucket in shard.buckets.values():
            _restore_bucket(shard, bucket, step, reader)
        for table in shard.tables.values():
            _restore_table(table, step, reader)
    if shard.gate is not None:
        shard.gate.begin_at(step, loss_scale_of(snapshot))


def _restore_bucket(shard: JobShard, bucket: Bucket, step: int, reader: SnapshotReader) -> None:
    dtype = bucket.update.values.dtype
    for key_range in bucket.spec.partition.ranges:
        key = bucket.spec.keys[key_range.key_index].key
        arrays = {
            name: Segment(*key_range[1:3], reader.read(name, key, key_range.start, key_range.end, dtype))
            for name in (VALUE, *bucket.spec.state)
        }
        last = key_range.number + key_range.stop - key_range.first
        updates = reader.read(UPDATES, key, key_range.number, last, np.dtype(np.int64))
        residual = None
        if bucket.update.residual is not None and RESIDUAL in reader.arrays(key):
            residual = reader.read(RESIDUAL, key, key_range.start, key_range.end, dtype)
        bucket.begin_at(step, arrays.pop(VALUE), arrays, updates, residual)


def _restore_table(table: TableState, step: int, reader: SnapshotReader) -> None:
    """Its rows may have been on any shards."""
    key, layout, rows = table.spec.key, table.layout, table.rows
    each = {
        name: reader.each(name, key, array.dtype)
        for name, array in (rows.marks() | {UPDATES: np.zeros(1, np.int64)}).items()
    }
    updates = each.pop(UPDATES)

    def is_here(ids: Array) -> Array:
        found: Array = layout.shards_of(ids) == table.shard
        return found

    if not updates or any(len(found) != len(updates) for found in each.values()):
        raise SnapshotError(f"{reader.folder} has no table {key!r}, or not all that is known of it")
    table.begin_at(step, int(updates[0][0]))
    rows.begin_with([dict(zip(each, marks, strict=True)) for marks in zip(*each.values(), strict=True)], is_here)
    like = rows.columns(np.empty(0, np.int64))
    for ids, columns in reader.rows(key, is_here, {name: array.dtype for name, array in like.items()}):
        if not columns:
            rows.remove(layout.indices_of(ids.view(layout.id_dtype)))
            continue
        shaped = {name: columns[name].reshape(-1, *array.shape[1:]) for name, array in like.items()}
        rows.restore(layout.indices_of(ids.view(layout.id_dtype)), shaped)
