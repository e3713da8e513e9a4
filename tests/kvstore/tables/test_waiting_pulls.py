"""Pulls of a unit that wait: in their order, and no more of those that were given up than may be."""

from __future__ import annotations

from weft_kvstore.bucket.waiting import PullWait
from weft_kvstore.tables.state import LEAST_WAITS, WaitingPulls
from weft_kvstore.wire.messages import Reading


def pull_of(request: int, version: int = 0) -> PullWait:
    return PullWait(None, request, version, slot=0, state=False, reading=Reading.OWN)


def test_those_that_are_ready_are_taken_in_their_order_and_the_others_stay() -> None:
    waits = WaitingPulls()
    for request in range(6):
        waits.add(pull_of(request, version=request % 2), request % 2)
    assert [one.request for one in waits.take(1, lambda one: one.version == 0)] == [0, 2, 4]
    assert [one.request for one in waits] == [1, 3, 5]
    assert waits.take(1, lambda _: False) == []
    assert len(waits) == 3


def test_those_of_versions_to_come_are_not_looked_at() -> None:
    waits, asked = WaitingPulls(), []

    def is_ready(wait: PullWait) -> bool:
        asked.append(wait.version)
        return True

    for version in reversed(range(100)):
        waits.add(pull_of(version, version), version)
    for version in range(100):
        waits.take(version, is_ready)
    assert asked == list(range(100))


def test_one_that_was_given_up_is_not_asked_whether_it_is_ready() -> None:
    waits, asked = WaitingPulls(), []
    for request in range(3):
        waits.add(pull_of(request), 0)
    next(iter(waits)).drop()

    def is_ready(wait: PullWait) -> bool:
        asked.append(wait.request)
        return False

    assert waits.take(0, is_ready) == []
    assert asked == [one.request for one in waits] == [1, 2]


def test_those_that_were_given_up_are_bounded_by_those_that_were_not() -> None:
    waits, kept = WaitingPulls(), 100
    for request in range(kept):
        waits.add(pull_of(request), 0)
    for request in range(kept, 5000):
        gone = pull_of(request)
        waits.add(gone, 0)
        gone.drop()
        assert len(waits) <= 2 * (kept + 1), "the one that comes is not given up yet"
    assert [one.request for one in waits if not one.dropped] == list(range(kept))
    assert len(WaitingPulls()) == 0 < LEAST_WAITS
