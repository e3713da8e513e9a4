"""Rows that are taken from anywhere, and put where they belong, against NumPy's own indexing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft_kernels.row_copies import put_rows, take_rows, taken_rows
from weft_kernels.rules.lookup import rules
from weft_kernels.rules.rows import apply_to_rows


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64"])
@pytest.mark.parametrize("width", [0, 1, 3, 64])
def test_rows_go_where_they_belong(dtype: str, width: int) -> None:
    draw = np.random.default_rng(width)
    array = draw.integers(-100, 100, (50, width)).astype(dtype)
    wanted, places = array.copy(), draw.permutation(50)[:20]
    rows = draw.integers(-100, 100, (20, width)).astype(dtype)
    wanted[places] = rows
    put_rows(array, places, rows)
    assert np.array_equal(array, wanted)
    put_rows(array, places[:0], rows[:0])
    assert np.array_equal(array, wanted)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64"])
@pytest.mark.parametrize("width", [0, 1, 3, 64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_come_from_anywhere(dtype: str, width: int, order: Any) -> None:
    draw = np.random.default_rng(width)
    array = np.asarray(draw.integers(-100, 100, (50, width)).astype(dtype), order=order)
    places = draw.integers(0, 50, 20)
    assert np.array_equal(taken_rows(array, places), array[places])
    assert taken_rows(array[:0], places[:0]).shape == (0, width)
    apart = np.zeros((40, width), dtype)[::2]
    take_rows(array, places, apart)
    assert np.array_equal(apart, array[places])


@pytest.mark.parametrize(
    "made",
    [
        np.asfortranarray,
        lambda rows: rows.astype(np.float64),
        lambda rows: np.repeat(rows, 2, axis=0)[::2],
        lambda rows: np.frombuffer(b"x" + rows.tobytes(), np.uint8)[1:].view(np.float32).reshape(rows.shape),
    ],
)
def test_rows_may_lie_in_memory_as_they_will(made: Any) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    array = np.zeros((9, 3), np.float32)
    put_rows(array, np.array([8, 0, 3, 5]), made(rows))
    assert np.array_equal(array[[8, 0, 3, 5]], rows)
    assert np.count_nonzero(array.any(axis=1)) == 4


@pytest.mark.parametrize("may_be_written", [False, True])
@pytest.mark.parametrize("name", [name for name, rule in rules().items() if not rule.whole])
def test_a_rule_on_rows_has_the_dense_bits_whether_it_may_write_the_gradient_or_not(
    name: str, *, may_be_written: bool
) -> None:
    """Beyond a block of the cache, from memory that is not aligned, and with the dense rule as the oracle."""
    rule, draw, width = rules()[name], np.random.default_rng(7), 48
    weight, count = draw.standard_normal((4000, width)).astype(np.float32), 3001
    state = {one: np.full_like(weight, start) for one, start in rule.state.items()}
    dense, dense_state = weight.copy(), {one: array.copy() for one, array in state.items()}
    places = np.sort(draw.permutation(4000)[:count])
    given = draw.standard_normal((count, width)).astype(np.float32)
    whole = np.zeros_like(weight)
    whole[places] = given
    given.flags.writeable = False
    for step in (1, 2):
        gradient = given.copy() if may_be_written else given
        apply_to_rows(rule, weight, gradient, state, places, step=step, hyper=rule.hyper)
        rule.apply(dense, whole, dense_state, step, rule.hyper)
    assert weight[places].tobytes() == dense[places].tobytes()
    assert all(state[one][places].tobytes() == dense_state[one][places].tobytes() for one in state)
