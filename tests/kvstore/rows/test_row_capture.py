"""What is captured of a table's rows is what they were at that moment, whatever is written before it is taken out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_kvstore.rows.arrays import MOST_BLOCKS, RowCapture, a_block

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
    assert a_block(rows, row_bytes) == expected


def test_the_largest_table_has_no_more_blocks_than_a_head_can_name() -> None:
    assert -(-(1 << 40) // a_block(1 << 40, 64)) == MOST_BLOCKS
