"""One future for several."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def gathered(futures: Sequence[Future[Any]], join: Callable[[list[Any]], T]) -> Future[T]:
    """Ends when all have, with what `join` makes of their results in order; or with the error of the first, in order,
    that failed."""
    whole: Future[T] = Future()
    whole.set_running_or_notify_cancel()
    left = len(futures)
    lock = threading.Lock()

    def ended(_one: Future[Any]) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        error = next((error for one in futures if (error := one.exception()) is not None), None)
        if error is not None:
            whole.set_exception(error)
        else:
            whole.set_result(join([one.result() for one in futures]))

    for one in futures:
        one.add_done_callback(ended)
    return whole
