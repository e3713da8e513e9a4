"""What other threads have a shard's thread do: each caller hears what became of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from weft_kvstore.errors import StoreError
from weft_kvstore.serving.shard_server import Commands

WAIT_S = 60


class Thread:
    """Carries commands out until it is stopped."""

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.commands = Commands("the shard at x", self.woken.set)
        self.is_over = False
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.is_over:
            assert self.woken.wait(WAIT_S)
            self.woken.clear()
            self.commands.work()
        self.commands.end()

    def stop(self) -> None:
        self.is_over = True
        self.woken.set()
        self.thread.join(WAIT_S)


@pytest.fixture
def serving() -> Iterator[Thread]:
    made = Thread()
    made.commands.begin()
    made.thread.start()
    yield made
    made.stop()


def test_it_is_done_on_the_thread_and_in_order(serving: Thread) -> None:
    done: list[tuple[int, int | None]] = []
    for number in range(3):
        serving.commands.carry_out(lambda number=number: done.append((number, threading.get_ident())))  # type: ignore[misc]
    assert done == [(number, serving.thread.ident) for number in range(3)]


def test_its_error_is_the_callers_and_the_next_is_done_all_the_same(serving: Thread) -> None:
    def wrong() -> None:
        raise ValueError("no such job")

    with pytest.raises(ValueError, match="no such job"):
        serving.commands.carry_out(wrong)
    serving.commands.carry_out(lambda: None)


def test_before_the_begin_and_after_the_end_none_is_taken(serving: Thread) -> None:
    with pytest.raises(StoreError, match="the shard at x is not running"):
        Commands("the shard at x", lambda: None).carry_out(lambda: None)
    serving.stop()
    with pytest.raises(StoreError, match="is not running"):
        serving.commands.carry_out(lambda: None)


def test_what_waits_at_the_end_is_not_done_and_says_so() -> None:
    here = Thread()
    here.commands.begin()
    done: list[bool] = []
    told: list[str] = []

    def ask() -> None:
        try:
            here.commands.carry_out(lambda: done.append(True))
        except StoreError as error:
            told.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    assert here.woken.wait(WAIT_S)
    here.commands.end()
    asking.join(WAIT_S)
    assert (done, told) == ([], ["the shard at x was stopped"])
