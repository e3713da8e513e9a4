"""Segments of rows that a shard takes in: where they lie."""

from __future__ import annotations

import numpy as np
import pytest

from store_cluster import store_of, table_of
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.tables import TableState
from weft_kvstore.wire.codec import PushSegment
from weft_kvstore.wire.messages import PayloadKind

IDS = np.array([1, 4, 6], np.int64)
VALUES = np.arange(6, dtype=np.float32).reshape(3, 2)
NBYTES = IDS.nbytes + VALUES.nbytes


def table() -> TableState:
    made = JobShard(store_of([table_of("t", (64, 2), 1)], slots=1, shards=1, slice_bytes=1 << 10), 0)
    found = made.tables[0]
    assert isinstance(found, TableState)
    return found


def segment_of(payload: memoryview) -> PushSegment:
    return PushSegment(PayloadKind.GRADIENT, 1, 0, 0, 0, 1, 1, [payload])


def payload_at(offset: int) -> memoryview:
    """The rows in memory of their own, so many bytes from an address that fits any number."""
    room = np.zeros(offset + NBYTES, np.uint8)
    room[offset:] = np.frombuffer(IDS.tobytes() + VALUES.tobytes(), np.uint8)
    return memoryview(room)[offset:]  # type: ignore[arg-type]  # an array is a buffer


def test_rows_are_used_where_they_arrived() -> None:
    payload = payload_at(0)
    _, values = table().reader.rows(segment_of(payload))
    assert np.shares_memory(values, np.frombuffer(payload, np.uint8))


@pytest.mark.parametrize("payload", [payload_at(0).toreadonly(), payload_at(2), payload_at(1)])
def test_rows_are_copied_from_where_they_may_not_be_written_or_do_not_fit(payload: memoryview) -> None:
    rows = table().reader.rows(segment_of(payload))
    assert not np.shares_memory(rows[1], np.frombuffer(payload, np.uint8))
    for array, wanted in zip(rows, (IDS, VALUES), strict=True):
        assert np.array_equal(array, wanted)
        assert array.flags.writeable
        assert array.flags.aligned
