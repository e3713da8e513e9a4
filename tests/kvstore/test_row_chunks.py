"""Rows as chunks of bytes and back, whatever runs they travel in."""

from __future__ import annotations

import numpy as np
import pytest

from weft_kvstore.cargo import Cargo
from weft_kvstore.codec import ProtocolError
from weft_kvstore.description import GrowthDescription
from weft_kvstore.push_run import Run
from weft_kvstore.row_chunks import packed, unpacked_ids, unpacked_rows
from weft_kvstore.row_cut import RowCut, chunks_of
from weft_kvstore.rows import Rows, merged
from weft_kvstore.table_state import joined


def cut_of(shards: int, width: int, rows_up: int, growth: GrowthDescription | None = None) -> RowCut:
    return RowCut(1000, width, np.dtype(np.float32), shards, rows_up, 5, 4, growth)


def runs(cut: RowCut, base: memoryview, a_chunk: int, chunks: int, stops: list[int]) -> list[Run]:
    found, first = [], 0
    for stop in [one for one in stops if one < chunks] + [chunks]:
        payload = memoryview(bytearray(base[first * a_chunk : stop * a_chunk]))
        found.append(Run(Cargo.GRADIENT, 1, 0, 0, first, stop - first, chunks, payload))
        first = stop
    return found


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 40])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("stops", [[], [1], [1, 2, 3], [4]])
def test_rows_come_back_as_they_left(count: int, width: int, shards: int, stops: list[int]) -> None:
    cut, draw = cut_of(shards, width, 7), np.random.default_rng(count)
    ids = np.sort(draw.permutation(1000)[: count * shards]).astype(np.int64)
    rows = Rows(ids, draw.standard_normal((len(ids), width)).astype(np.float32))
    picked = np.flatnonzero(ids % shards == shards - 1)
    made = memoryview(packed(rows, cut, picked if shards > 1 else None)).cast("B")
    mine, chunks = len(picked), chunks_of(len(picked), 7)
    parts = [one for run in runs(cut, made, cut.chunk_bytes, chunks, stops) for one in
             unpacked_rows(run, cut, shards - 1, "t")]  # fmt: skip
    assert [len(one.ids) for one in parts] == [min(7, mine - low) for low in range(0, max(mine, 1), 7)]
    together = joined(parts)
    pieces = list(together.pieces(3))
    assert all(len(ids) == len(values) <= 3 for ids, values in pieces)
    for found in (together.ids, np.concatenate([together.ids[:0], *(ids for ids, _ in pieces)])):
        assert np.array_equal(found, ids[picked] // shards)
    wanted = rows.values[picked]
    assert np.array_equal(np.concatenate([wanted[:0], *(values for _, values in pieces)]), wanted)
    assert (together.size, together.nbytes) == (wanted.size, wanted.nbytes + 8 * mine)
    assert np.array_equal(together.values, wanted)
    assert np.array_equal(merged(together, Rows(together.ids, wanted)).values, wanted + wanted)
    of_ids = memoryview(ids[picked].tobytes())
    asked = [one for run in runs(cut, of_ids, 4 * 8, chunks_of(mine, 4), stops) for one in
             unpacked_ids(run, cut, shards - 1, "t")]  # fmt: skip
    assert np.array_equal(np.concatenate(asked), ids[picked] // shards)


def test_one_run_is_not_copied_again_and_several_only_where_one_array_is_wanted() -> None:
    cut = cut_of(1, 2, 7)
    rows = Rows(np.arange(40), np.arange(80, dtype=np.float32).reshape(40, 2))
    made = memoryview(packed(rows, cut)).cast("B")
    (run,) = runs(cut, made, cut.chunk_bytes, 6, [])
    parts = unpacked_rows(run, cut, 0, "t")
    assert joined(parts).values is parts[0].values.base
    parts = [one for run in runs(cut, made, cut.chunk_bytes, 6, [2]) for one in unpacked_rows(run, cut, 0, "t")]
    firsts = [values for _, values in joined(parts).pieces(40)]
    assert [np.shares_memory(one, part.values) for one, part in zip(firsts, (parts[0], parts[2]), strict=True)] == [
        True
    ] * 2


@pytest.mark.parametrize(
    ("ids", "growth", "told"),
    [
        ([3, 2], None, "do not ascend"),
        ([0, 3, 9, 9, 10], None, "do not ascend"),
        ([5, 1000], None, "rows 5 to 1000 of key 't', which has 1000"),
        ([-4, 5], None, "rows -4 to 5"),
        ([1, 4, 2, 900, 1000], None, "rows 1 to 1000"),
        ([2**64 - 1, 0], GrowthDescription(), "do not ascend"),
    ],
)
def test_ids_that_cannot_be_are_refused(ids: list[int], growth: GrowthDescription | None, told: str) -> None:
    cut = cut_of(1, 2, 2, growth)
    rows = Rows(np.array(ids, cut.id_dtype), np.zeros((len(ids), 2), np.float32))
    chunks = chunks_of(len(ids), 2)
    run = Run(Cargo.GRADIENT, 1, 0, 0, 0, chunks, chunks, memoryview(packed(rows, cut)).cast("B"))
    with pytest.raises(ProtocolError, match=told):
        unpacked_rows(run, cut, 0, "t")
