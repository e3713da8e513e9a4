"""Rows of a sum under way: those that no message holds are told, and no others."""

from __future__ import annotations

import numpy as np

from weft_kvstore.rows.rows import Rows
from weft_kvstore.tables.pushes import RowTotal


def rows_of(*ids: int) -> Rows:
    return Rows(np.array(ids, np.int64), np.ones((len(ids), 2), np.float32))


def test_rows_that_lie_where_messages_brought_them_are_not_made() -> None:
    total = RowTotal()
    found = total.sum(rows_of(1, 3), rows_of(3, 5))
    assert sorted(found.ids.tolist()) == [1, 3, 5]
    assert total.rows_made == 1, "row 5 alone: row 3 was added where the first push has it"
    assert RowTotal().rows_made == 0


def test_pushes_of_other_rows_stay_where_they_are() -> None:
    total = RowTotal()
    total.sum(total.sum(rows_of(1, 2), rows_of(5, 6)), rows_of(8, 9))
    assert total.rows_made == 0


def test_what_was_made_of_one_push_is_told_until_the_end() -> None:
    total = RowTotal()
    found = total.sum(rows_of(1, 3), rows_of(3, 5))
    found = total.sum(found, rows_of(5, 7))
    assert total.rows_made == 2, "rows 5 and 7"
    total.end()
    assert total.rows_made == 0


def test_a_sum_that_is_joined_is_made_anew() -> None:
    total = RowTotal()
    found = total.sum(rows_of(1, 2), rows_of(5, 6))
    assert np.array_equal(total.values(found), np.ones((4, 2), np.float32))
    assert total.rows_made == 4
    one = RowTotal()
    one.values(rows_of(1, 2))
    assert one.rows_made == 0, "one part is as it came"
