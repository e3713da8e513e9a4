"""Which gradients are added next, against a plain list of slices as they came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_kvstore.arrays import Segment, segments_as_one
from weft_kvstore.bucket.sums import WaitingGradients

Array = np.ndarray[Any, np.dtype[Any]]

SLICES, SLOTS, STEPS = 6, 3, 2
BOUNDS = np.array([0, 2, 3, 7, 8, 10, 11])

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
    found: dict[int, tuple[int, list[float]]] = {}
    for first, stop, elements, _ in segment.parts or (segment,):
        assert elements is not None
        for one in range(first, stop):
            found[one] = number, elements[BOUNDS[one] - BOUNDS[first] : BOUNDS[one + 1] - BOUNDS[first]].tolist()
    assert sorted(found) == list(range(segment.first, segment.stop))
    return found


def taken(waiting: WaitingGradients, step: int, merged: int, first: int, stop: int) -> list[Any]:
    """(slice, slot, elements), in the order of slices."""
    found: list[Any] = []
    for place, segment in waiting.take(step, merged, first, stop):
        assert first <= segment.first < segment.stop <= stop
        found += [(slice_, *of) for slice_, of in by_slice(place, segment).items()]
    return sorted(found)


class Plain:
    """What waits, slice by slice: (slot, step, slice, number of the push)."""

    def __init__(self, *, by_slot: bool) -> None:
        self.waiting: list[tuple[int, int, int, int]] = []
        self.by_slot = by_slot

    def free(self, place: int, step: int, first: int, stop: int) -> bool:
        """A slot's step of a slice is in once."""
        return not any(one[:2] == (place, step) and first <= one[2] < stop for one in self.waiting)

    def take(self, step: int, merged: int, first: int, stop: int) -> list[Any]:
        found: list[Any] = []
        for one in list(self.waiting):
            place, of, slice_, number = one
            if of == step and first <= slice_ < stop and (place == merged or not self.by_slot):
                found.append((slice_, place, elements_of(number, slice_, slice_ + 1).tolist()))
                self.waiting.remove(one)
        return sorted(found)


@pytest.mark.parametrize("by_slot", [True, False])
@given(events=events, apart=st.booleans())
def test_what_is_next_is_what_a_plain_list_has(by_slot: bool, events: list[Any], *, apart: bool) -> None:
    order, plain = WaitingGradients(BOUNDS, by_slot=by_slot), Plain(by_slot=by_slot)
    for number, (what, place, step, (first, stop)) in enumerate(events):
        if what == "put" and plain.free(place, step, first, stop):
            order.put(place, step, laid_of(number, first, stop, apart=apart))
            plain.waiting += [(place, step, one, number) for one in range(first, stop)]
        elif what == "next":  # `place` counts the slots that are merged.
            assert taken(order, step, place, first, stop) == plain.take(step, place, first, stop)
        elif what == "forget":
            order.forget(place)
            plain.waiting = [one for one in plain.waiting if one[0] != place]
        for one in range(STEPS):
            mine = [waiting for waiting in plain.waiting if waiting[1] == one]
            assert order.holds(one) == any(waiting[0] == 0 or not by_slot for waiting in mine)


def test_that_a_slot_had_nothing_waits_as_its_gradients_do() -> None:
    waiting = WaitingGradients(BOUNDS, by_slot=True)
    waiting.put(0, 0, Segment(1, 5, None))
    assert waiting.take(0, 0, 2, 4) == [(0, Segment(2, 4, None))]
    assert [(segment.first, segment.stop) for _, segment in waiting.take(0, 0, 0, SLICES)] == [(1, 2), (4, 5)]
    assert not waiting.holds(0)
