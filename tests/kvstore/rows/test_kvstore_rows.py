"""Rows side by side with their ids: made distinct and summed, and put where they were asked for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft_kvstore.rows.rows import before_padding, summed_rows, wanted_rows


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
    rows = summed_rows(ids, values)
    assert dict(zip(rows.ids.tolist(), rows.values[:, 0].tolist(), strict=True)) == total
    assert rows.ids.tolist() == sorted(total)
    wanted = wanted_rows(ids)
    assert wanted.ids.tolist() == sorted(total)
    answer = np.full(len(ids), 99)
    answer[slice(None) if wanted.places is None else wanted.places] = wanted.ids
    answer[wanted.zeros] = -1
    answer[wanted.copies] = answer[wanted.sources]
    assert answer.tolist() == [max(one, -1) for one in listed]
