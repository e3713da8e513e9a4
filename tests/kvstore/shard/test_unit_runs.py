"""Runs of rows that a shard takes in: where they lie, and what they count for."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from store_cluster import store_of, table_of
from weft_kvstore.quotas import Holds
from weft_kvstore.shard.account import Account
from weft_kvstore.shard.job_shard import JobShard, rows_of
from weft_kvstore.tables.state import TableState
from weft_kvstore.wire.messages import PayloadKind
from weft_kvstore.wire.runs import Run

IDS = np.array([1, 4, 6], np.int64)
VALUES = np.arange(6, dtype=np.float32).reshape(3, 2)
NBYTES = IDS.nbytes + VALUES.nbytes


def table(shards: int = 1) -> TableState:
    made = JobShard(store_of([table_of("t", (64, 2), 1)], slots=1, shards=shards, slice_bytes=1 << 10), 0)
    found = made.parts.table(0)
    assert isinstance(found, TableState)
    return found


def run_of(payload: memoryview) -> Run:
    return Run(PayloadKind.GRADIENT, 1, 0, 0, 0, 1, 1, payload)


def payload_at(offset: int, ids: np.ndarray = IDS) -> memoryview:
    """The rows in memory of their own, so many bytes from an address that fits any number."""
    room = np.zeros(offset + NBYTES, np.uint8)
    room[offset:] = np.frombuffer(ids.tobytes() + VALUES.tobytes(), np.uint8)
    return memoryview(room)[offset:]  # type: ignore[arg-type]  # an array is a buffer


def test_rows_are_used_where_they_arrived() -> None:
    account, payload = Account(), payload_at(0)
    rows = rows_of(table(), run_of(payload), account)
    assert np.shares_memory(rows.values, np.frombuffer(payload, np.uint8))
    assert account.waiting.nbytes == 0, "the payload counts for itself"
    assert account.waiting.rows == 0, "the table has a place for each of its rows"


@pytest.mark.parametrize("payload", [payload_at(0).toreadonly(), payload_at(4), payload_at(1)])
def test_rows_are_copied_from_where_they_may_not_be_written_or_do_not_fit(payload: memoryview) -> None:
    account = Account()
    rows = rows_of(table(), run_of(payload), account)
    assert not np.shares_memory(rows.values, np.frombuffer(payload, np.uint8))
    for array, wanted in ((rows.ids, IDS), (rows.values, VALUES)):
        assert np.array_equal(array, wanted)
        assert array.flags.writeable
        assert array.flags.aligned
    assert account.waiting == Holds(NBYTES)
    part = rows.values[1:]
    del rows, array
    gc.collect()
    assert account.waiting == Holds(NBYTES), "a part of them keeps all of them"
    del part
    gc.collect()
    assert account.waiting == Holds()


def test_places_that_are_not_the_ids_count() -> None:
    account = Account()
    rows = rows_of(table(shards=2), run_of(payload_at(0, 2 * IDS)), account)
    assert np.array_equal(rows.ids, IDS)
    assert account.waiting == Holds(IDS.nbytes)
