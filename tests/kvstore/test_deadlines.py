"""Deadlines of operations against a plain list of those that are open."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from weft_kvstore.futures import Deadlines

TIMEOUT_S = 10.0

events = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 3)),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("look"), st.integers(0, 15)),
    ),
    max_size=40,
)


@given(events)
def test_each_that_is_open_comes_due_once_at_its_time_in_the_order_set(events: list[tuple[str, int]]) -> None:
    deadlines, open_, by_number = Deadlines(), set[int](), dict[int, float]()
    now, found = 0.0, list[int]()
    for what, number in events:
        if what == "begin":
            now += number
            begun = len(by_number)
            by_number[begun] = now + TIMEOUT_S
            open_.add(begun)
            deadlines.waiting.append((by_number[begun], begun))
        elif what == "end":
            open_.discard(number)
        else:
            now += number
            due = deadlines.due(now, open_)
            assert due == [one for one in sorted(open_) if by_number[one] <= now]
            open_ -= set(due)
            found += due
            assert deadlines.next() == min((by_number[one] for one in open_), default=math.inf)
    assert found == sorted(set(found))


def test_nothing_waits_where_nothing_was_set() -> None:
    deadlines = Deadlines()
    assert deadlines.next() == math.inf
    assert deadlines.due(1e9, {1, 2, 3}) == []


def test_what_is_due_at_this_very_moment_is_due_and_what_is_due_a_moment_later_is_not() -> None:
    deadlines = Deadlines()
    deadlines.waiting.append((5.0, 1))
    deadlines.waiting.append((math.nextafter(5.0, 6.0), 2))
    assert deadlines.due(math.nextafter(5.0, 4.0), {1, 2}) == []
    assert deadlines.due(5.0, {1, 2}) == [1]
    assert deadlines.next() == math.nextafter(5.0, 6.0)


def test_what_has_ended_wakes_nobody() -> None:
    """A client that pushes all day with an hour's deadline sleeps over none of those that were acknowledged."""
    deadlines, open_ = Deadlines(), set(range(1000))
    for number in range(1000):
        deadlines.waiting.append((3600.0 + number, number))
    open_ -= set(range(999))
    assert deadlines.due(1.0, open_) == []
    assert deadlines.next() == 3600.0 + 999
    assert deadlines.due(1.0, set()) == []
    assert deadlines.next() == math.inf


def test_what_ended_behind_one_that_is_open_is_never_due() -> None:
    deadlines = Deadlines()
    for number in range(3):
        deadlines.waiting.append((1.0, number))
    assert deadlines.due(0.5, {0, 2}) == []
    assert deadlines.due(1.0, {0, 2}) == [0, 2]
    assert deadlines.due(1.0, {0, 1, 2}) == []
