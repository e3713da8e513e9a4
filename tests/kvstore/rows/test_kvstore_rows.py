"""Rows side by side with their ids: made distinct and summed."""

from __future__ import annotations

import numpy as np

from weft_kvstore.rows.rows import summed_rows


def test_rows_of_one_id_are_summed_in_order_and_of_float16_as_float32_rounded_once() -> None:
    """The oracle: the float32 sum from the left. In float16 2048 + 1 is 2048, so that the sum would stand still."""
    values = np.ones((201, 2), np.float16)
    values[0] = 2048
    ids = np.zeros(201, np.int64)
    ids[100] = 3
    ids[150] = -1
    rows = summed_rows(ids, values)
    assert rows.ids.tolist() == [0, 3]
    assert rows.values.dtype == np.float16
    assert rows.values.tolist() == [[2048 + 198] * 2, [1, 1]]
