"""Callers that wait while another one leads: what ends a wait, and whom a leader that leaves wakes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from same_host_children import wait_until
from store_cluster import WAIT_S
from weft_kvstore.client.poller import Followers
from weft_kvstore.futures import StoreFuture


class Led:
    """Followers of one leader, each on a thread of its own."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.followers = Followers()
        self.is_led = True
        self._pool = pool

    def follow(self, future: StoreFuture[int]) -> Future[None]:
        """Returns once it sleeps, or has gone: it asks whether somebody leads with its future's lock held."""
        asked = threading.Event()

        def is_led() -> bool:
            asked.set()
            return self.is_led

        waiting = self._pool.submit(self.followers.follow, future, math.inf, is_led, None)
        assert asked.wait(WAIT_S)
        with future._condition:  # It has let go of the lock: it sleeps.
            return waiting


@pytest.fixture
def led() -> Iterator[Led]:
    with ThreadPoolExecutor(3) as pool:
        yield Led(pool)


def test_the_end_of_its_future_ends_a_wait(led: Led) -> None:
    future: StoreFuture[int] = StoreFuture()
    waiting = led.follow(future)
    assert (len(led.followers.futures), waiting.done()) == (1, False)
    future.set_result(1)
    waiting.result(WAIT_S)
    assert len(led.followers.futures) == 0


def test_who_finds_nobody_that_leads_does_not_wait(led: Led) -> None:
    led.is_led = False
    led.follow(StoreFuture()).result(WAIT_S)
    assert len(led.followers.futures) == 0


def test_who_has_what_it_wants_does_not_wait(led: Led) -> None:
    future: StoreFuture[int] = StoreFuture()
    future.set_result(1)
    led.followers.follow(future, math.inf, lambda: True, None)
    assert len(led.followers.futures) == 0


def test_the_time_ends_a_wait(led: Led) -> None:
    led.followers.follow(StoreFuture(), time.monotonic() + 0.01, lambda: True, None)
    assert len(led.followers.futures) == 0


def test_the_first_whose_future_has_not_ended_is_woken_and_no_other(led: Led) -> None:
    futures: list[StoreFuture[int]] = [StoreFuture() for _ in range(3)]
    waits = [led.follow(future) for future in futures]
    futures[0].set_result(1)
    waits[0].result(WAIT_S)
    led.is_led = False
    led.followers.wake_first()
    waits[1].result(WAIT_S)
    assert (len(led.followers.futures), waits[2].done()) == (1, False)
    led.followers.wake_first()
    waits[2].result(WAIT_S)
    wait_until(lambda: len(led.followers.futures) == 0)
    led.followers.wake_first()
