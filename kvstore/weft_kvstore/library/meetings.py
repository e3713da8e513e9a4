"""The barriers of one slot, one after the other: each begins once all slots have met at the one before."""

from __future__ import annotations

import re
import threading
from collections import deque
from concurrent.futures import Future
from typing import Any, Final

import numpy as np

from weft_kvstore.description.key_name import BARRIER_KEY
from weft_kvstore.errors import StoreError
from weft_kvstore.runtime.joined_future import joined, then
from weft_kvstore.store import BulkStore

_CALL: Final = re.compile(rf"(push|pull) of key {BARRIER_KEY!r}, (step|version) \d+")
_MISSING: Final = re.compile(rf"key {BARRIER_KEY!r} has seen \d+ steps; step \d+ waits for slots (\d[\d, ]*)")


class Meetings:
    """Calls wait in `_waiting`; the first of them is under way while `_is_busy`.

    One that fails fails those that wait behind it. Where its push failed, the next call makes it again: no number is
    ever left out, or nobody could meet any more.
    """

    def __init__(self, store: BulkStore) -> None:
        self._store = store
        self._number: int | None = None
        """The next barrier's; None: the store has not said yet where the others are."""
        self._pushed: Future[None] | None = None
        self._waiting: deque[Future[None]] = deque()
        self._is_busy = False
        self._lock = threading.Lock()

    def meet(self) -> Future[None]:
        """Ends when every slot has called it as often."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._waiting.append(future)
            begins, self._is_busy = not self._is_busy, True
        if begins:
            self._begin()
        return future

    def _begin(self) -> None:
        self._pushed = None
        if self._number is None:
            known = self._store.pull_versions([BARRIER_KEY], 0, settled=True)
            met = then(known, lambda found: self._arrive(int(found.lowest[0])))
        else:
            met = self._arrive(self._number)
        met.add_done_callback(self._ended)

    def _arrive(self, number: int) -> Future[None]:
        self._number = number
        self._pushed = self._store.push(BARRIER_KEY, number, np.zeros((), np.float32))
        return joined([self._store.pull(BARRIER_KEY, number + 1, settled=True)], _nothing, [self._pushed])

    def _ended(self, met: Future[None]) -> None:
        error = _told(met.exception())
        has_arrived = self._pushed is not None and self._pushed.done() and self._pushed.exception() is None
        with self._lock:
            if self._number is not None and (error is None or has_arrived):
                self._number += 1
            ended = [self._waiting.popleft()] if error is None else list(self._waiting)
            if error is not None:
                self._waiting.clear()
            goes_on = self._is_busy = bool(self._waiting)
        if goes_on:
            self._begin()
        for future in ended:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


def _told(error: BaseException | None) -> BaseException | None:
    """The error of a barrier, in words of the call: nobody who met at it knows of its key, pushes and pulls."""
    if not isinstance(error, StoreError):
        return error
    text = _MISSING.sub(lambda found: _not_here(found[1]), _CALL.sub("barrier", str(error)))
    told = type(error)(text.replace(f"key {BARRIER_KEY!r}", "the barrier"))
    told.__cause__ = error.__cause__
    return told


def _not_here(slots: str) -> str:
    return f"slots {slots} have not called it" if "," in slots else f"slot {slots} has not called it"


def _nothing(_: Any) -> None:
    pass
