"""Who waits for which version, alone: no thread, no future, no clock but a number."""

from __future__ import annotations

import math

import pytest

from weft_kvstore.errors import StoreError, StoreLostError, StoreTimeoutError
from weft_worker.version_waits import Begin, End, Give, VersionWaits

TIMEOUT_S = 10.0


@pytest.fixture
def waits() -> VersionWaits:
    return VersionWaits(["v", "w"], TIMEOUT_S)


def test_a_first_value_is_asked_for_once_and_given_to_all_who_wait(waits: VersionWaits) -> None:
    assert waits.want(1, ["w"], 0, now=0) == [Begin("w")]
    assert waits.want(2, ["w"], 0, now=0) == []
    assert waits.version("w") is None
    assert waits.reached("w", 0) == [Give(1), Give(2)]
    assert waits.want(3, ["w"], 0, now=0) == [Give(3)]


def test_each_is_given_the_version_that_it_waits_for(waits: VersionWaits) -> None:
    for number, version in ((1, 2), (2, 1), (3, 0)):
        waits.want(number, ["w"], version, now=0)
    given = [waits.reached("w", version) for version in (0, 1, 2)]
    assert given == [[Give(3)], [Give(2)], [Give(1)]]


def test_a_version_that_has_passed_is_an_error(waits: VersionWaits) -> None:
    waits.reached("w", 3)
    ((number, error),) = [(end.number, end.error) for end in waits.want(7, ["w"], 2, now=0) if isinstance(end, End)]
    assert number == 7
    assert str(error) == "version 2 of key 'w', which this worker updates: key 'w' is at version 3 already"


@pytest.mark.parametrize("order", [("v", "w"), ("w", "v")])
def test_who_waits_for_keys_is_given_once_the_last_was_there(order: tuple[str, str], waits: VersionWaits) -> None:
    """A key that goes on meanwhile has been there."""
    assert waits.want(1, ["v", "w"], 0, now=0) == [Begin("v"), Begin("w")]
    first, last = order
    assert waits.reached(first, 0) == []
    assert waits.reached(first, 1) == []
    assert waits.reached(last, 0) == [Give(1)]
    assert waits.reached(last, 1) == []


def test_keys_that_are_there_already_and_keys_that_are_not(waits: VersionWaits) -> None:
    waits.reached("v", 4)
    assert waits.want(1, ["v", "w"], 4, now=0) == [Begin("w")]
    for version in range(4):
        assert waits.reached("w", version) == []
    assert waits.reached("w", 4) == [Give(1)]


def test_the_first_failure_of_a_key_ends_who_waits_and_who_comes(waits: VersionWaits) -> None:
    lost = StoreLostError("shard 1 is silent")
    waits.want(1, ["w"], 5, now=0)
    waits.want(2, ["v", "w"], 5, now=0)
    waits.want(3, ["v"], 0, now=0)
    assert waits.failed("w", lost) == [End(1, lost), End(2, lost)]
    assert waits.failed("w", StoreError("another")) == []
    assert waits.want(4, ["w"], 0, now=0) == [End(4, lost)]
    assert waits.misfit("w", 0) is lost
    assert waits.reached("v", 0) == [Give(3)]


def test_what_is_late_ends_by_its_name_and_nothing_else_does(waits: VersionWaits) -> None:
    assert waits.due() == math.inf
    waits.want(1, ["v", "w"], 1, now=0)
    waits.want(2, ["w"], 0, now=3)
    waits.want(3, ["w"], 9, now=4)
    waits.reached("w", 0)
    assert waits.due() == TIMEOUT_S
    assert waits.tick(9.9) == []
    (end,) = waits.tick(10)
    assert isinstance(end, End)
    assert end.number == 1
    assert isinstance(end.error, StoreTimeoutError)
    told = "version 1 of key 'v', 'w', which this worker updates took over 10 s: it has 'v' at version None, 'w' at"
    assert str(end.error).startswith(told)
    assert waits.tick(13) == []
    assert [each.number for each in waits.tick(14) if isinstance(each, End)] == [3]
    assert waits.due() == math.inf
    assert waits.reached("w", 1) == waits.reached("v", 1) == []


def test_a_gradient_fits_the_version_that_it_updates_alone(waits: VersionWaits) -> None:
    waits.reached("w", 2)
    assert waits.misfit("w", 2) is None
    for step in (1, 3):
        assert str(waits.misfit("w", step)) == f"key 'w', step {step}: the key is at version 2"
    assert str(waits.misfit("v", 0)) == "key 'v', step 0: the key is at version None"
