"""Rows that were set for a version to come against a dict: of each place the last one, in pieces that ascend."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_kvstore.rows.rows import Rows, is_ascending
from weft_kvstore.tables.steps import RowsAhead

ROWS, WIDTH, A_PIECE = 40, 2, 7
SETS = st.lists(st.sets(st.integers(0, ROWS - 1)), max_size=8)


def rows_of(ids: set[int], number: float, dtype: type) -> Rows:
    return Rows(np.array(sorted(ids), dtype), np.full((len(ids), WIDTH), number, np.float32))


def read(ahead: RowsAhead) -> dict[int, float]:
    """What waits, by place."""
    found: dict[int, float] = {}
    for part in ahead.values():
        assert 0 < len(part) <= A_PIECE
        assert is_ascending(part.ids)
        assert (part.values == part.values[:, :1]).all()
        new = dict(zip(part.ids.tolist(), part.values[:, 0].tolist(), strict=True))
        assert not new.keys() & found.keys(), "each place once"
        found |= new
    return found


def none_of(dtype: type) -> RowsAhead:
    return RowsAhead(WIDTH, np.dtype(np.float32), np.dtype(dtype), a_piece=A_PIECE)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@given(sets=SETS)
def test_of_each_place_the_last_value_waits(dtype: type, sets: list[set[int]]) -> None:
    ahead, model = none_of(dtype), {}
    for number, ids in enumerate(sets):
        ahead.add(rows_of(ids, number, dtype))
        model |= dict.fromkeys(ids, float(number))
    assert len(ahead) == int(bool(model)), "one part, however often it is set"
    assert read(ahead) == model


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_what_is_set_again_takes_no_more_memory(dtype: type) -> None:
    ahead = none_of(dtype)
    ahead.add(rows_of(set(range(20)), 1.0, dtype))
    before = ahead.nbytes
    assert before >= 20 * WIDTH * 4
    for number in range(5):
        ahead.add(rows_of(set(range(20)), number, dtype))
    assert ahead.nbytes == before


def test_ids_of_a_growing_table_are_any_64_bits() -> None:
    ahead = none_of(np.uint64)
    ahead.add(rows_of({2**64 - 1, 2**63, 0}, 3.0, np.uint64))
    assert read(ahead) == dict.fromkeys((2**64 - 1, 2**63, 0), 3.0)
