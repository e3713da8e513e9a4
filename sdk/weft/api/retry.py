"""How an agent tries a call to the server again: pauses that double, drawn at random, until told to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_delay,
    stop_any,
    stop_never,
    stop_when_event_set,
)
from tenacity.wait import wait_random_exponential

FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 1.0
"""Well below the server's limit of silence, so that one failed call does not lose the agent."""

_R = TypeVar("_R")


class UnreachableError(Exception):
    """No answer that can be used; worth another try."""


def retried(
    call: Callable[[], _R],
    stop: threading.Event,
    log: logging.Logger,
    what: str,
    *,
    deadline_s: float | None = None,
    tell: Callable[[str], None] | None = None,
) -> _R:
    """What `call` returns, tried again while it raises UnreachableError; `what` is what the log calls it.

    `tell` hears the first failure. Raises the last UnreachableError once `stop` is set or `deadline_s` have passed
    since the first try.
    """

    def note(state: RetryCallState) -> None:
        """Logs the 1st, 2nd, 4th, 8th ... failure of a row, and every 64th."""
        attempt = state.attempt_number
        error = state.outcome.exception() if state.outcome else None
        if attempt & (attempt - 1) == 0 or attempt % 64 == 0:
            log.warning("%s: attempt %d has failed, tried again: %s", what, attempt, error)
        if attempt == 1 and tell is not None:
            tell(str(error))

    late = stop_never if deadline_s is None else stop_after_delay(deadline_s)
    retrying = Retrying(
        retry=retry_if_exception_type(UnreachableError),
        wait=wait_random_exponential(multiplier=FIRST_RETRY_S, max=LONGEST_RETRY_S),
        stop=stop_any(stop_when_event_set(stop), late),
        sleep=sleep_using_event(stop),
        before_sleep=note,
        reraise=True,
    )
    return retrying(call)
