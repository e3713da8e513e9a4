"""Which gradients are added next, against a plain list of slices as they came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_kvstore.arrays import Segment, segments_as_one
from weft_kvstore.bucket.sums import ArrivalOrder, MergeOrder, SlotOrder

Array = np.ndarray[Any, np.dtype[Any]]

SLICES, SLOTS, STEPS = 6, 3, 2
BOUNDS = np.array([0, 2, 3, 7, 8, 10, 11])
ORDERS = {"slot": SlotOrder, "arrival": ArrivalOrder}

ranges = st.tuples(st.integers(0, SLICES - 1), st.integers(1, SLICES)).map(
    lambda one: (one[0], min(one[0] + one[1], SLICES))
)
puts = st.tuples(st.just("put"), st.integers(0, SLOTS - 1), st.integers(0, STEPS - 1), ranges)
nexts = st.tuples(st.just("next"), st.integers(0, SLOTS - 1), st.integers(0, STEPS - 1), ranges)
forgets = st.tuples(st.just("forget"), st.integers(0, SLOTS - 1), st.just(0), st.just((0, SLICES)))
events = st.lists(st.one_of(puts, puts, nexts, forgets), max_size=40)


def elements_of(number: int, first: int, stop: int) -> Array:
    """Numbers that say whose they are and where they belong."""
    return 1000.0 * number + np.arange(BOUNDS[first], BOUNDS[stop])


def laid_of(number: int, first: int, stop: int, *, apart: bool) -> Segment:
    if not apart:
        return Segment(first, stop, elements_of(number, first, stop))
    return segments_as_one([Segment(one, one + 1, elements_of(number, one, one + 1)) for one in range(first, stop)])


def by_slice(number: int, segment: Segment) -> dict[int, tuple[int, list[float]]]:
    """Each slice of what was taken out, with the contributing slot and its elements."""
    assert segment.elements is not None
    assert not segment.parts
    origin = BOUNDS[segment.first]
    cut = {
        one: segment.elements[BOUNDS[one] - origin : BOUNDS[one + 1] - origin]
        for one in range(segment.first, segment.stop)
    }
    return {one: (number, some.tolist()) for one, some in cut.items()}


def taken(order: MergeOrder, step: int, merged: int, first: int, stop: int) -> dict[int, tuple[int, list[float]]]:
    found: dict[int, tuple[int, list[float]]] = {}
    for place, segment in order.next(step, merged, first, stop):
        assert first <= segment.first < segment.stop <= stop
        some = by_slice(place, segment)
        assert not found.keys() & some.keys(), "of one slice one slot is next"
        found |= some
    return found


class Plain:
    """What waits, slice by slice: (slot, step, slice, number of the push), in the order in which it came."""

    def __init__(self, *, by_arrival: bool) -> None:
        self.waiting: list[tuple[int, int, int, int]] = []
        self.by_arrival = by_arrival

    def free(self, place: int, step: int, first: int, stop: int) -> bool:
        """A slot's step of a slice is in once."""
        return not any(one[:2] == (place, step) and first <= one[2] < stop for one in self.waiting)

    def next(self, step: int, merged: int, first: int, stop: int) -> dict[int, tuple[int, list[float]]]:
        found: dict[int, tuple[int, list[float]]] = {}
        for one in list(self.waiting):
            place, of, slice_, number = one
            mine = of == step and first <= slice_ < stop and slice_ not in found
            if mine and (self.by_arrival or place == merged):
                found[slice_] = (place, elements_of(number, slice_, slice_ + 1).tolist())
                self.waiting.remove(one)
        return found


@pytest.mark.parametrize("kind", ORDERS)
@given(events=events, apart=st.booleans())
def test_what_is_next_is_what_a_plain_list_has(kind: str, events: list[Any], *, apart: bool) -> None:
    order: MergeOrder = ORDERS[kind](BOUNDS)
    plain = Plain(by_arrival=kind == "arrival")
    for number, (what, place, step, (first, stop)) in enumerate(events):
        if what == "put" and plain.free(place, step, first, stop):
            order.put(place, step, laid_of(number, first, stop, apart=apart))
            plain.waiting += [(place, step, one, number) for one in range(first, stop)]
        elif what == "next":  # `place` counts the slots that are merged.
            assert taken(order, step, place, first, stop) == plain.next(step, place, first, stop)
        elif what == "forget":
            order.forget(place)
            plain.waiting = [one for one in plain.waiting if one[0] != place]
        for one in range(STEPS):
            mine = [waiting for waiting in plain.waiting if waiting[1] == one]
            if kind == "arrival":
                assert order.holds(one) == bool(mine)
            else:
                assert order.holds(one) == any(waiting[0] == 0 for waiting in mine)


def test_slots_are_added_one_after_the_other_whoever_comes_first() -> None:
    order = SlotOrder(BOUNDS)
    for place in (2, 1):
        order.put(place, 0, laid_of(place, 0, SLICES, apart=False))
    assert not order.holds(0)
    assert order.next(0, 0, 0, SLICES) == []
    order.put(0, 0, laid_of(0, 0, SLICES, apart=False))
    assert order.holds(0)
    assert not order.holds(1)
    assert [taken(order, 0, merged, 0, SLICES)[3][0] for merged in range(3)] == [0, 1, 2]
    assert order.next(0, 0, 0, SLICES) == []
    assert [order.is_next(place, 0, 1) for place in range(3)] == [False, True, False]


def test_by_arrival_nothing_passes_what_waits_of_its_step() -> None:
    order = ArrivalOrder(BOUNDS)
    assert order.is_next(2, 0, 0)
    order.put(1, 0, laid_of(1, 2, 3, apart=False))
    assert not order.is_next(2, 0, 0)
    assert order.is_next(2, 1, 0), "another step is none of its business"
    assert taken(order, 0, 0, 0, 2) == {}
    assert not order.is_next(2, 0, 0)
    assert taken(order, 0, 0, 0, SLICES).keys() == {2}
    assert order.is_next(2, 0, 0)


@pytest.mark.parametrize("make", [SlotOrder, ArrivalOrder])
def test_what_a_slot_has_here_never_came_once_it_is_forgotten(make: Callable[[Array], MergeOrder]) -> None:
    order = make(BOUNDS)
    for step in range(STEPS):
        order.put(0, step, laid_of(step, 0, SLICES, apart=False))
    order.forget(1)
    assert order.holds(0)
    order.forget(0)
    order.forget(0)
    assert [order.holds(step) for step in range(STEPS)] == [False, False]
    assert order.next(0, 0, 0, SLICES) == []
    assert order.is_next(0, 0, 0)


@pytest.mark.parametrize("make", [SlotOrder, ArrivalOrder])
def test_that_a_slot_had_nothing_waits_as_its_gradients_do(make: Callable[[Array], MergeOrder]) -> None:
    order = make(BOUNDS)
    order.put(0, 0, Segment(1, 5, None))
    (only,) = order.next(0, 0, 2, 4)
    assert only == (0, Segment(2, 4, None))
    assert [(segment.first, segment.stop) for _, segment in order.next(0, 0, 0, SLICES)] == [(1, 2), (4, 5)]
    assert not order.holds(0)
