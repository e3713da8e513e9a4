"""The end of a future as the end of the engine's work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

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
