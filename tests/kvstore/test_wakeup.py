"""What wakes a thread in a poller, also while it is closed."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable

from store_cluster import WAIT_S
from weft_kvstore.process import Wakeup


def is_readable(wakeup: Wakeup) -> bool:
    return bool(select.select([wakeup.fileno()], [], [], 0)[0])


def test_it_is_readable_from_a_wake_until_it_is_cleared() -> None:
    wakeup = Wakeup()
    assert not is_readable(wakeup)
    for _ in range(100_000):  # More than a socket holds.
        wakeup.wake()
    assert is_readable(wakeup)
    wakeup.clear()
    assert not is_readable(wakeup)
    wakeup.close()


def test_a_wake_of_what_is_closed_does_nothing() -> None:
    wakeup = Wakeup()
    wakeup.close()
    wakeup.wake()
    wakeup.close()


class Closing:
    """An end whose first close takes until somebody has tried to wake, or waits for the close."""

    def __init__(self, end: socket.socket, wake: Callable[[], None]) -> None:
        self._end = end
        self.waking = threading.Thread(target=wake)

    def close(self) -> None:
        self._end.close()
        if self.waking.ident is None:  # A wake of what is closed closes it again.
            self.waking.start()
            self.waking.join(0.1)


def test_a_wake_in_the_middle_of_a_close_does_no_harm() -> None:
    wakeup, failed = Wakeup(), []

    def wake() -> None:
        try:
            wakeup.wake()
        except OSError as error:
            failed.append(error)

    closing = Closing(wakeup._read, wake)
    wakeup._read = closing  # type: ignore[assignment]
    wakeup.close()
    closing.waking.join()
    assert not failed


def test_who_closes_it_does_not_wait_for_who_wakes_and_that_closes_it_then() -> None:
    """A signal's handler in the middle of `wake` may wait for a thread that closes it."""
    wakeup = Wakeup()
    with wakeup._lock:
        closer = threading.Thread(target=wakeup.close)
        closer.start()
        closer.join(WAIT_S)
        assert not closer.is_alive()
        assert wakeup.fileno() >= 0
    wakeup.wake()
    assert wakeup.fileno() == -1
