"""Callers that wait for a future each while another caller leads the client's work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from weft_kvstore.runtime.interrupts import Interrupts
from weft_kvstore.runtime.store_future import StoreFuture


class Followers:
    """Any thread follows, and any wakes the first: in the order in which they came. Each sleeps over its future's own
    condition, so that the future's end wakes it too."""

    def __init__(self) -> None:
        self._futures: list[StoreFuture[Any]] = []

    def __len__(self) -> int:
        return len(self._futures)

    def follow(
        self, future: StoreFuture[Any], until: float, is_led: Callable[[], bool], interrupts: Interrupts | None
    ) -> None:
        """Waits until it is done, or nobody leads any more. `is_led` is asked where whoever stops leading wakes this
        one afterwards, so that one of both sees the other."""

        def wait() -> None:
            with future._condition:
                if not future.done() and is_led():
                    left_s = min(until - time.monotonic(), threading.TIMEOUT_MAX)
                    future._condition.wait(max(left_s, 0.0))

        self._futures.append(future)
        try:
            if interrupts is None:
                wait()
            else:
                interrupts.sleep(wait)
        finally:
            self._futures.remove(future)

    def wake_first(self) -> None:
        """The first whose future has not ended may lead now."""
        for other in self._futures.copy():
            if not other.done():
                with other._condition:
                    other._condition.notify_all()
                break
