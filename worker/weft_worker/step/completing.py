"""The ends of futures as the end of the engine's work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from weft_worker.engine.errors import PartError
from weft_worker.engine.work import OnComplete


def completing(on_complete: OnComplete, keep: Callable[[Any], None] | None = None) -> Callable[[Future[Any]], None]:
    """A future's callback that hands its value to `keep` and its end to `on_complete`."""

    def done(future: Future[Any]) -> None:
        error = CancelledError("the store gave it up") if future.cancelled() else future.exception()
        if error is None and keep is not None:
            try:
                keep(future.result())
            except Exception as raised:  # noqa: BLE001  # a value of another type, a device without memory
                error = raised
        on_complete(error)

    return done


def together(futures: Sequence[Future[Any]], name_of: Callable[[int], str]) -> Future[list[Any]]:
    """Ends once all of these have: with their values, or a PartError of the first that failed, called `name_of` it."""
    ended: Future[list[Any]] = Future()
    ended.set_running_or_notify_cancel()
    left, lock = len(futures), threading.Lock()

    def done(_: Future[Any]) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        for number, future in enumerate(futures):
            error = CancelledError("the store gave it up") if future.cancelled() else future.exception()
            if error is not None:
                ended.set_exception(PartError(name_of(number), None, error))
                return
        ended.set_result([future.result() for future in futures])

    for future in futures:
        future.add_done_callback(done)
    return ended
