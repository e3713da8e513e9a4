"""Rows as chunks of bytes and back, whatever segments they travel in."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from store_cluster import ended
from weft_kvstore.arrays import Array
from weft_kvstore.description.records import GrowthDescription
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.rows.rows import MOST_RUNS, SMALL_ELEMENTS, Chunks, Rows, batches, is_ascending, merging, own_rows
from weft_kvstore.sharding import RowLayout, chunks_of
from weft_kvstore.wire.codec import ProtocolError, PushSegment, RowReader, RowSource
from weft_kvstore.wire.messages import PayloadKind


def cut_of(shards: int, width: int, rows_up: int, growth: GrowthDescription | None = None) -> RowLayout:
    return RowLayout(1000, width, np.dtype(np.float32), shards, rows_up, 5, 4, growth)


def segments(cut: RowLayout, base: memoryview, chunk_rows: int, chunks: int, stops: list[int]) -> list[PushSegment]:
    found, first = [], 0
    for stop in [one for one in stops if one < chunks] + [chunks]:
        payload = memoryview(bytearray(base[first * chunk_rows : stop * chunk_rows]))
        found.append(PushSegment(PayloadKind.GRADIENT, 1, 0, 0, first, stop - first, chunks, [payload]))
        first = stop
    return found


def segment_of(source: RowSource, cut: RowLayout, low: int, high: int, chunks: int) -> PushSegment:
    """Chunks `low` to before `high` as they arrive in memory that nobody else has."""
    part = b"".join(source(low * cut.chunk_bytes, min(high * cut.chunk_bytes, source.nbytes)))
    return PushSegment(PayloadKind.GRADIENT, 1, 0, 0, low, high - low, chunks, [memoryview(bytearray(part))])


def packed(rows: Rows, cut: RowLayout, picked: Array | None = None) -> memoryview:
    source = RowSource(rows.ids, rows.values, cut, picked)
    return memoryview(b"".join(source(0, source.nbytes)))


def joined(parts: list[Rows]) -> list[Array]:
    """All rows that are in parts, one behind the other."""
    return [np.concatenate(arrays) for arrays in zip(*map(own_rows, parts), strict=True)]


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 40])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("stops", [[], [1], [1, 2, 3], [4]])
def test_rows_come_back_as_they_left(count: int, width: int, shards: int, stops: list[int]) -> None:
    cut, draw = cut_of(shards, width, 7), np.random.default_rng(count)
    ids = np.sort(draw.permutation(1000)[: count * shards]).astype(np.int64)
    rows = Rows(ids, draw.standard_normal((len(ids), width)).astype(np.float32))
    picked = np.flatnonzero(ids % shards == shards - 1)
    source = RowSource(ids, rows.values, cut, picked if shards > 1 else None)
    mine, chunks = len(picked), chunks_of(len(picked), 7)
    assert (source.count, source.nbytes) == (mine, mine * (8 + 4 * width))
    push, whole = Chunks(chunks), []
    for low, high in pairwise([0, *[stop for stop in stops if stop < chunks], chunks]):
        segment = segment_of(source, cut, low, high, chunks)
        came = RowReader(cut, shards - 1, "t").rows(segment)
        assert not whole
        whole = list(push.add(low, high - low, 7, came, "here"))
    parts, wanted = [Rows(*part) for part in whole], rows.values[picked]
    pieces = batches(parts, 3)
    assert all(len(part.ids) == len(part.values) <= 3 for part in pieces)
    for found in (parts, pieces):
        assert np.array_equal(joined(found)[0], ids[picked] // shards)
        assert np.array_equal(joined(found)[1], wanted)
    total = ended(merging(parts, [Rows(ids[picked] // shards, wanted.copy())]))
    assert np.array_equal(joined(total)[1], wanted + wanted)
    of_ids = memoryview(ids[picked].tobytes())
    asked = [
        RowReader(cut, shards - 1, "t").ids(segment)
        for segment in segments(cut, of_ids, 4 * 8, chunks_of(mine, 4), stops)
    ]
    assert np.array_equal(np.concatenate(asked), ids[picked] // shards)


def test_rows_that_leave_are_read_where_they_lie_until_then() -> None:
    cut = cut_of(1, 2, 7)
    ids, values = np.arange(40), np.arange(80, dtype=np.float32).reshape(40, 2)
    source = RowSource(ids, values, cut)
    for part, own in zip(source(cut.chunk_bytes, 2 * cut.chunk_bytes), (ids, values), strict=True):
        assert np.shares_memory(np.frombuffer(part, np.uint8), own)


def test_what_came_as_one_run_stays_where_it_arrived() -> None:
    cut = cut_of(1, 2, 7)
    source = RowSource(np.arange(40), np.arange(80, dtype=np.float32).reshape(40, 2), cut)
    came = [segment_of(source, cut, low, high, 6) for low, high in ((0, 2), (2, 6))]
    parts = [RowReader(cut, 0, "t").rows(segment) for segment in came]
    for segment, (ids, values) in zip(came, parts, strict=True):
        payload = np.frombuffer(segment.payload, np.uint8)
        assert np.shares_memory(values, payload)
        assert not np.shares_memory(ids, payload), "a pull that waits keeps its ids, and not the message"
    push = Chunks(6)
    assert not push.add(0, 2, 7, parts[0], "here")
    assert push.add(2, 4, 7, parts[1], "here") == parts


def some_rows(ids: list[int]) -> tuple[Array, Array]:
    return np.array(ids), np.array(ids, np.float32)[:, None]


def test_chunks_that_came_before_are_left_out_whatever_runs_they_come_in_again() -> None:
    """Three rows a chunk: chunks 1 and 4 are there when all of 0 to 5 comes."""
    push, ids = Chunks(6), list(range(10, 27))
    for chunk in (4, 1):
        assert not push.add(chunk, 1, 3, some_rows(ids[3 * chunk : 3 * chunk + 3]), "here")
    again = some_rows(ids)
    again[1][:] += 1
    found, values = joined([Rows(*part) for part in push.add(0, 6, 3, again, "here")])
    assert found.tolist() == ids
    before = {13, 14, 15, 22, 23, 24}
    assert values[:, 0].tolist() == [one if one in before else one + 1 for one in ids]


@pytest.mark.parametrize(("there", "first", "ids"), [((0, [5, 6]), 1, [6, 7]), ((2, [5, 6]), 0, [1, 2, 3, 5])])
def test_rows_that_are_not_between_those_beside_them_are_refused(
    there: tuple[int, list[int]], first: int, ids: list[int]
) -> None:
    push = Chunks(1 + len(ids) // 2)
    assert not push.add(there[0], 1, 2, some_rows(there[1]), "here")
    with pytest.raises(PushRefusedError, match="here: rows of its chunks do not ascend"):
        push.add(first, len(ids) // 2, 2, some_rows(ids), "here")


@pytest.mark.parametrize("few", [SMALL_ELEMENTS, 60])
@pytest.mark.parametrize("slots", [1, 2, 3, MOST_RUNS + 3])
@pytest.mark.parametrize(("count", "among"), [(0, 200), (1, 200), (30, 200), (120, 200), (30, 3000), (120, 3000)])
def test_a_sum_of_pushes_is_that_of_their_rows_in_order(
    slots: int, count: int, among: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many ids few are common: those stay where they came, as zeros, and are named."""
    monkeypatch.setattr("weft_kvstore.rows.rows.SMALL_ELEMENTS", few)
    draw = np.random.default_rng(count)
    pushes, wanted = [], {}
    for _ in range(slots):
        ids = np.sort(draw.choice(among, count, replace=False))
        values = draw.standard_normal((count, 3)).astype(np.float32)
        middle = int(draw.integers(count + 1))
        pushes.append([Rows(ids[:middle], values[:middle]), Rows(ids[middle:], values[middle:])])
        for row, value in zip(ids.tolist(), values, strict=True):
            wanted[row] = wanted[row] + value if row in wanted else value.copy()
    total = pushes[0]
    for other in pushes[1:]:
        total = ended(merging(total, other))
    assert all(is_ascending(part.ids) for part in total)
    ids, values = joined(total)
    assert sorted(ids.tolist()) == sorted(wanted)
    for row, value in zip(ids.tolist(), values, strict=True):
        assert np.array_equal(value, wanted[row])
    elsewhere = [part.values[part.elsewhere] for part in total if part.elsewhere is not None]
    assert not any(part.any() for part in elsewhere)
    if slots in {2, 3} and count == 120:
        assert bool(elsewhere) is (among == 3000)


def test_small_pushes_of_many_slots_are_few_parts() -> None:
    """Each push is looked up in all of them."""
    draw, total, most = np.random.default_rng(0), list[Rows](), 0
    for _ in range(300):
        ids = np.sort(draw.choice(1 << 20, 100, replace=False))
        total = ended(merging(total, [Rows(ids, np.ones((100, 64), np.float32))]))
        most = max(most, len(total))
    assert most <= 3 * MOST_RUNS
    assert sum(float(own_rows(part)[1].sum()) for part in total) == 300 * 100 * 64


@pytest.mark.parametrize("seed", range(8))
def test_rows_of_small_and_large_pushes_in_any_order_are_added_up(seed: int) -> None:
    draw = np.random.default_rng(seed)
    among, width = 20_000, 8
    wanted, total = np.zeros((among, width), np.float32), list[Rows]()
    for _ in range(3 * MOST_RUNS):
        count = int(draw.choice([20, 20, 20, SMALL_ELEMENTS // width + 1000]))
        push = Rows(np.sort(draw.choice(among, count, replace=False)), np.ones((count, width), np.float32))
        wanted[push.ids] += 1
        total = ended(merging(total, [push]))
    found = np.zeros_like(wanted)
    for part in total:
        ids, values = own_rows(part)
        found[ids] += values
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("counts", [(1000, 10), (10, 1000), (1000, 200), (200, 1000), (1000, 1), (1, 1000)])
@pytest.mark.parametrize("among", [1000, 1500, 100_000])
def test_a_few_rows_are_added_to_many_and_many_to_a_few(counts: tuple[int, int], among: int) -> None:
    draw = np.random.default_rng(among)
    pushes = [
        Rows(np.sort(draw.choice(among, count, replace=False)), draw.standard_normal((count, 3)).astype(np.float32))
        for count in counts
    ]
    wanted = np.zeros((among, 3), np.float32)
    for push in pushes:
        wanted[push.ids] += push.values
    ids, values = joined(ended(merging(pushes[:1], pushes[1:])))
    assert np.array_equal(np.sort(ids), np.union1d(*[push.ids for push in pushes]))
    assert np.array_equal(values, wanted[ids])


@pytest.mark.parametrize(
    ("ids", "growth", "told"),
    [
        ([3, 2], None, "do not ascend"),
        ([0, 3, 9, 9, 10], None, "do not ascend"),
        ([5, 1000], None, "rows 5 to 1000 of key 't', which has 1000"),
        ([-4, 5], None, "rows -4 to 5"),
        ([2**64 - 1, 0], GrowthDescription(), "do not ascend"),
    ],
)
def test_ids_that_cannot_be_are_refused(ids: list[int], growth: GrowthDescription | None, told: str) -> None:
    cut = cut_of(1, 2, 2, growth)
    rows = Rows(np.array(ids, cut.id_dtype), np.zeros((len(ids), 2), np.float32))
    chunks = chunks_of(len(ids), 2)
    segment = PushSegment(PayloadKind.GRADIENT, 1, 0, 0, 0, chunks, chunks, [packed(rows, cut)])
    with pytest.raises(ProtocolError, match=told):
        RowReader(cut, 0, "t").check(segment)
