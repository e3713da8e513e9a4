"""Waits for the store beyond its own deadline: for slots that are behind, or for values that take long to be set."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from weft_kvstore.errors import StoreTimeoutError

T = TypeVar("T")
Tell = Callable[[str], None]


def result_of(future: Future[T], what: str, timeout_s: float) -> T:
    """The future's value. Raises its StoreError; StoreTimeoutError, naming `what`, where it does not end in time."""
    try:
        return future.result(timeout_s)
    except TimeoutError as error:
        raise StoreTimeoutError(f"{what}: no answer within {timeout_s:g} s") from error


def patiently(
    ask: Callable[[], Future[T]],
    what: str,
    *,
    timeout_s: float,
    deadline_s: float,
    tell: Tell,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """What `ask` brings, asked again while the store's own deadline passes, until `deadline_s` are over.

    `tell` hears once why it takes long. Raises the last StoreTimeoutError, and other StoreErrors at once.
    """
    end = clock() + deadline_s
    is_told = False
    while True:
        try:
            return result_of(ask(), what, timeout_s)
        except StoreTimeoutError as error:
            if clock() >= end:
                raise
            if not is_told:
                is_told = True
                tell(f"{what}, for up to {deadline_s:g} s: {error}")
