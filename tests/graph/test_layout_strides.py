"""Where elements lie, as pure arithmetic, is where NumPy puts them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_graph.layout.strides import NO_VIEW, expanded, in_order, in_rows, made, order_of, reshaped, same_places
from weft_graph.schema import MemoryOrder

SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=4).map(tuple)


def strides_of(array: np.ndarray) -> tuple[int, ...]:
    return tuple(step // array.itemsize for step in array.strides)


@st.composite
def arrays_and_targets(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, ...]]:
    """An array that lies in any order, perhaps with gaps or repeated, and a shape of as many elements."""
    shape = draw(SIZES)
    array = np.arange(math.prod(shape)).reshape(shape).transpose(draw(st.permutations(range(len(shape)))))
    if array.ndim and draw(st.booleans()):
        array = array[..., ::2]
    if draw(st.booleans()):
        array = np.broadcast_to(array, (2, *array.shape))
    left, target = array.size, []
    while left > 1:
        factor = draw(st.sampled_from([n for n in range(2, left + 1) if left % n == 0]))
        target.append(factor)
        left //= factor
    for _ in range(draw(st.integers(0, 2))):
        target.insert(draw(st.integers(0, len(target))), 1)
    return array, tuple(target)


@given(arrays_and_targets())
def test_a_reshaped_array_is_a_view_where_numpys_is(case: tuple[np.ndarray, tuple[int, ...]]) -> None:
    array, target = case
    theirs = array.reshape(target)
    ours = reshaped(array.shape, strides_of(array), target)
    if ours == NO_VIEW:
        assert not np.shares_memory(theirs, array)
    else:
        assert np.shares_memory(theirs, array)
        assert same_places(target, ours, strides_of(theirs))


def test_an_array_without_elements_can_take_any_shape() -> None:
    assert reshaped((0, 3), (3, 1), (2, 0)) == in_rows((2, 0))


@given(SIZES.flatmap(lambda shape: st.tuples(st.just(shape), st.permutations(range(len(shape))))))
def test_the_order_of_an_array_without_gaps_is_found_again(case: tuple[tuple[int, ...], list[int]]) -> None:
    shape, axes = case
    strides = in_order(shape, axes)
    found = order_of(shape, strides)
    assert found is not None
    assert same_places(shape, in_order(shape, found), strides)
    lying = np.empty([shape[axis] for axis in axes], np.uint8).transpose(np.argsort(axes))
    assert same_places(shape, strides, lying.strides)


def test_gaps_and_repeated_elements_have_no_order() -> None:
    assert order_of((2, 3), (6, 2)) is None
    assert order_of((2, 3), (0, 1)) is None


def test_broadcast_elements_lie_on_one_place() -> None:
    assert expanded((3, 1), (1, 1), (2, 3, 4)) == strides_of(np.broadcast_to(np.zeros((3, 1)), (2, 3, 4)))


@pytest.mark.parametrize(
    ("order", "expected"),
    [(MemoryOrder.ROWS, (12, 4, 2, 1)), (MemoryOrder.CHANNELS, (4, 8, 2, 1)), (MemoryOrder.INPUT, (1, 2, 6, 12))],
)
def test_an_operators_order_decides_how_its_output_lies(order: MemoryOrder, expected: tuple[int, ...]) -> None:
    shape = (2, 3, 2, 2)
    assert made(order, shape, [((3,), (1,)), (shape, (1, 2, 6, 12))]) == expected
