"""Rows as they are given and taken: ids in any order, and captures while rows are written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_kvstore.rows.row_arrays import MOST_GROUPS, RowCapture, group_rows
from weft_kvstore.rows.rows import before_padding, distinct_ids, last_rows, spread_rows, summed_rows


def test_rows_of_one_id_are_summed_in_order_and_of_float16_as_float32_rounded_once() -> None:
    """The oracle: the float32 sum from the left. In float16 2048 + 1 is 2048, so that the sum would stand still."""
    values = np.ones((201, 2), np.float16)
    values[0] = 2048
    ids = np.zeros(201, np.int64)
    ids[100] = 3
    ids[150] = -1
    rows = summed_rows(ids, values, before_padding(ids))
    assert rows.ids.tolist() == [0, 3]
    assert rows.values.dtype == np.float16
    assert rows.values.tolist() == [[2048 + 198] * 2, [1, 1]]


@pytest.mark.parametrize("listed", [[1, 1, 2], [2, 1], [1, 2, 3], [3, 1, 3, 1]])
def test_a_negative_zero_stays_one_whether_or_not_other_ids_are_repeated(listed: list[int]) -> None:
    """As it is for numbers that are added from the left."""
    ids, values = np.array(listed), np.full((len(listed), 2), -0.0, np.float32)
    rows = summed_rows(ids, values, before_padding(ids))
    assert rows.ids.tolist() == sorted(set(listed))
    assert np.signbit(rows.values).all()


some_ids = st.one_of(
    st.lists(st.integers(-3, 9), max_size=8),
    st.builds(
        lambda own, padding: sorted(own) + [-1] * padding, st.sets(st.integers(0, 30), max_size=6), st.integers(0, 3)
    ),
)


@given(some_ids)
def test_ids_in_any_order_with_padding_anywhere_are_summed_and_answered_alike(listed: list[int]) -> None:
    """The oracle: dicts. Ids that ascend, with padding behind them, take a way of their own."""
    ids, values = np.array(listed, np.int64), np.arange(len(listed), dtype=np.float32)[:, None] + 1
    real = [one for one in listed if one >= 0]
    is_plain = listed == sorted(set(real)) + [one for one in listed if one < 0]
    assert before_padding(ids) == (len(real) if is_plain else None)
    total = {one: sum(value for other, value in zip(listed, values[:, 0], strict=True) if other == one) for one in real}
    rows = summed_rows(ids, values, before_padding(ids))
    assert dict(zip(rows.ids.tolist(), rows.values[:, 0].tolist(), strict=True)) == total
    assert rows.ids.tolist() == sorted(total)
    distinct, index = distinct_ids(ids, before_padding(ids))
    assert distinct.tolist() == sorted(total)
    assert (index is None) == (is_plain and len(real) == len(listed))
    if index is not None:
        answer = spread_rows(distinct[:, None] + 1, index)
        assert answer[:, 0].tolist() == [max(one + 1, 0) for one in listed]
    last = last_rows(ids, values)
    assert dict(zip(last.ids.tolist(), last.values[:, 0].tolist(), strict=True)) == {
        one: value for one, value in zip(listed, values[:, 0].tolist(), strict=True) if one >= 0
    }


STOP = 300


@given(
    here=st.sets(st.integers(0, STOP - 1)),
    program=st.lists(st.tuples(st.sets(st.integers(0, STOP + 20), max_size=40), st.integers(1, 90)), max_size=12),
)
def test_every_row_that_was_there_is_taken_once_as_it_was(here: set[int], program: list[tuple[set[int], int]]) -> None:
    values = np.arange(STOP + 21)
    there = np.isin(np.arange(STOP), sorted(here))
    capture = RowCapture(there, lambda rows: {"row": rows.copy(), "value": values[rows]})
    found: dict[int, int] = {}

    def take(count: int) -> None:
        left = capture.left
        if left:
            columns = capture.take(count)
            assert len(columns["row"]) == min(count, left)
            for row, value in zip(columns["row"].tolist(), columns["value"].tolist(), strict=True):
                assert row not in found
                found[row] = value

    for written, count in program:
        rows = np.array(sorted(written, reverse=True), np.int64)
        capture.keep(rows)
        values[rows] = -1 - values[rows]
        take(count)
    while capture.left:
        take(37)
    assert found == {row: row for row in here}


@pytest.mark.parametrize(("rows", "row_bytes", "expected"), [(1 << 25, 64, 1 << 16), (5, 0, 1 << 22), (9, 1 << 30, 1)])
def test_a_block_is_some_mebibytes(rows: int, row_bytes: int, expected: int) -> None:
    assert group_rows(rows, row_bytes) == expected


def test_the_largest_table_has_no_more_blocks_than_a_head_can_name() -> None:
    assert -(-(1 << 40) // group_rows(1 << 40, 64)) == MOST_GROUPS
