"""When a client's own thread leads, and when it leaves the work to callers: by counts alone, without a thread."""

from __future__ import annotations

import pytest

from weft_kvstore.client.poller import GRACE_S, LONGEST_PAUSE_S, LOOKS, SparePoller


def looked(spare_poller: SparePoller, leads: int, *, is_open: bool = False) -> float:
    """A look that finds no caller who leads, and nothing that is due."""
    return spare_poller.pause_s(leads, is_led=False, is_due=False, is_open=is_open)


def led(spare_poller: SparePoller, leads: int) -> float:
    return spare_poller.pause_s(leads, is_led=True, is_due=False)


def test_before_anybody_has_led_the_thread_leads() -> None:
    assert looked(SparePoller(), 0) == 0.0


def test_what_is_due_it_does_at_once_but_not_beside_a_leader() -> None:
    spare_poller = SparePoller()
    assert spare_poller.pause_s(1, is_led=False, is_due=True) == 0.0
    assert spare_poller.pause_s(1, is_led=True, is_due=True) == 2 * GRACE_S


def test_after_a_caller_has_led_it_looks_so_often_and_leads_again() -> None:
    spare_poller = SparePoller()
    assert looked(spare_poller, 1) == GRACE_S
    assert [looked(spare_poller, 1) for _ in range(LOOKS + 2)] == [GRACE_S] * LOOKS + [0.0, 0.0]


def test_a_caller_that_leads_meanwhile_begins_the_looks_anew() -> None:
    spare_poller = SparePoller()
    for _ in range(LOOKS):
        looked(spare_poller, 1)
    assert looked(spare_poller, 2) == GRACE_S
    assert [looked(spare_poller, 2) for _ in range(LOOKS + 1)] == [GRACE_S] * LOOKS + [0.0]


def test_an_answer_that_nobody_waits_for_is_not_left_alone_longer_than_one_look() -> None:
    spare_poller = SparePoller()
    assert [looked(spare_poller, 1, is_open=True), looked(spare_poller, 1, is_open=True)] == [GRACE_S, 0.0]


def test_what_may_be_begun_with_the_next_call_is_waited_for_once_nobody_has_led() -> None:
    spare_poller = SparePoller()
    found = [spare_poller.pause_s(1, is_led=False, is_due=False, batch_s=GRACE_S / 8) for _ in range(2)]
    assert (found, spare_poller.looks) == ([GRACE_S, GRACE_S / 8], 0)


def test_pauses_beside_one_leader_double_up_to_a_bound_and_are_short_again_for_the_next() -> None:
    spare_poller = SparePoller()
    pauses = [led(spare_poller, 1) for _ in range(20)]
    assert pauses[:4] == pytest.approx([GRACE_S, 2 * GRACE_S, 4 * GRACE_S, 8 * GRACE_S])
    assert pauses[-1] == LONGEST_PAUSE_S
    assert led(spare_poller, 2) == GRACE_S


def test_once_woken_it_leads() -> None:
    spare_poller = SparePoller()
    looked(spare_poller, 1)
    spare_poller.woken(3)
    assert looked(spare_poller, 3) == 0.0
