"""Expressions that gather, scatter and choose, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import ops

X = np.array([[3.0, 1, 2], [6, 5, 4]], dtype=np.float32)


def x() -> weft.Expression:
    return weft.input("x", (2, 3), "float32")


def test_elements_and_slices_are_gathered_and_scattered():
    places = np.array([[2, 0], [1, 1]])
    feeds = {"x": X}
    np.testing.assert_array_equal(
        ops.gather_elements(x(), places, axis=1).eval(feeds), np.take_along_axis(X, places, 1)
    )
    np.testing.assert_array_equal(ops.gather_nd(x(), np.array([[1, 2], [0, 0]])).eval(feeds), [4, 3])
    added = ops.scatter_elements(x(), places, X[:, :2], 1, reduction="add").eval(feeds)
    np.testing.assert_array_equal(added, [[4, 1, 5], [6, 16, 4]])
    put = ops.scatter_nd(x(), np.array([[1]]), np.zeros((1, 3), np.float32)).eval(feeds)
    np.testing.assert_array_equal(put, [[3, 1, 2], [0, 0, 0]])


def test_elements_are_chosen_and_ordered():
    feeds = {"x": X}
    values, places = ops.top_k(x(), 2)
    np.testing.assert_array_equal(values.eval(feeds), [[3, 2], [6, 5]])
    np.testing.assert_array_equal(places.eval(feeds), [[0, 2], [0, 1]])
    np.testing.assert_array_equal(ops.compress(x(), np.array([False, True]), 0).eval(feeds), X[1:])
    np.testing.assert_array_equal(ops.non_zero(ops.greater(x(), 4.5)).eval(feeds), np.nonzero(X > 4.5))
    parts = ops.unique(weft.input("ids", (3,), "int64"))
    assert [part.eval({"ids": np.array([2, 1, 2])}).tolist() for part in parts] == [
        [1, 2],
        [1, 0],
        [1, 0, 1],
        [1, 2],
    ]
    turned = ops.reverse_sequence(x(), np.array([1, 3]), batch_axis=0, time_axis=1).eval(feeds)
    np.testing.assert_array_equal(turned, [[3, 1, 2], [4, 5, 6]])


def test_what_a_step_decides_has_a_dimension_of_unknown_name():
    chosen = ops.compress(x(), np.array([False, True]), 0)
    rows, columns = chosen.type.shape
    assert str(rows).startswith("?")
    assert columns == 3
    with pytest.raises(weft.ShapeError, match="condition"):
        ops.compress(x(), np.array([True] * 3), 0)
