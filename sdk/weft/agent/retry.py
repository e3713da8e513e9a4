"""How an agent tries a call to the server again: what an answer means, and pauses that double, drawn at random."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import count
from typing import Final, TypeVar

import httpx

from weft.api.problem import problem_code
from weft.http import Retry

PAUSES = Retry(first_s=0.1, longest_s=1.0)
"""At most. Well below the server's limit of silence, so that one failed call does not lose the agent."""

_R = TypeVar("_R")


class Verdict(Enum):
    """What the answer to a call of an agent means for the same call, and for others about the same allocation."""

    TAKEN = "taken"
    AGAIN = "again"
    """May be answered otherwise another time."""
    REFUSED = "refused"
    """The same call would be answered so again; another one need not."""
    UNWANTED = "unwanted"
    """The allocation is unknown, released or of another term: nothing about it is wanted any more."""


_CLASSES: Final[Mapping[int, Verdict]] = {2: Verdict.TAKEN, 4: Verdict.REFUSED}
"""By the first digit. What is not here is no server's answer to an agent: a proxy's redirect, a failure."""

_STATUSES: Final[Mapping[int, Verdict]] = {
    httpx.codes.UNAUTHORIZED: Verdict.AGAIN,  # the token may be in the midst of being changed
    httpx.codes.NOT_FOUND: Verdict.UNWANTED,
    httpx.codes.REQUEST_TIMEOUT: Verdict.AGAIN,
    httpx.codes.CONFLICT: Verdict.UNWANTED,
    httpx.codes.TOO_EARLY: Verdict.AGAIN,
    httpx.codes.TOO_MANY_REQUESTS: Verdict.AGAIN,
}
"""Those that differ from their class."""


def verdict(response: httpx.Response) -> Verdict:
    """What an answer of the server means. The response has been read.

    A 404 that is no problem document is a proxy's page while nothing is behind it, and says nothing.
    """
    status = response.status_code
    if status == httpx.codes.NOT_FOUND and problem_code(response.content) is None:
        return Verdict.AGAIN
    return _STATUSES.get(status, _CLASSES.get(status // 100, Verdict.AGAIN))


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

    began_s = time.monotonic()
    for failures in count(1):
        try:
            return call()
        except UnreachableError as error:
            if stop.is_set() or (deadline_s is not None and time.monotonic() - began_s >= deadline_s):
                raise
            if (
                failures & (failures - 1) == 0 or failures % 64 == 0
            ):  # of a row the 1st, 2nd, 4th, 8th ... and each 64th
                log.warning("%s: attempt %d has failed, tried again: %s", what, failures, error)
            if failures == 1 and tell is not None:
                tell(str(error))
        stop.wait(random.uniform(0.0, PAUSES.pause_s(failures)))  # noqa: S311 - so that not all agents come at once
    raise AssertionError("it is tried at least once")
