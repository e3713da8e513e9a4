"""Waiting for a pending job to be placed, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterator

from weft.api.job import Job
from weft.api.lifecycle import JobState
from weft.errors import ConnectError, ServerFaultError, UnavailableError
from weft.event_stream import AWAY, DEFAULT_RESUMPTION, Notice, Resumption
from weft.http import Http, Retry

POLL = Retry(first_s=0.1, longest_s=2.0)
"""How a pending job is asked for: often at first, since most jobs start at once."""


def await_placement(http: Http, job: str, *, resumption: Resumption = DEFAULT_RESUMPTION) -> Iterator[Notice]:
    """Ends once the job is not pending any more. Gives each new reason why it is, and when the server does not answer.

    Raises ConnectError and its like when `resumption.retry.attempts` calls in a row failed.
    """
    said, failures, polls = "", 0, 0
    while True:
        try:
            found = http.call(Job, "GET", f"/v1/jobs/{job}")
        except (ConnectError, UnavailableError, ServerFaultError):
            failures += 1
            if failures >= resumption.retry.attempts:
                raise
            if failures == 1:
                yield AWAY
            said = ""  # once it answers again, the reason is news again
            http.clock.sleep(resumption.retry.pause_s(failures))
            continue
        failures = 0
        if found.state is not JobState.PENDING:
            return
        if found.reason and found.reason != said:
            said = found.reason
            yield Notice(f"{JobState.PENDING.value}: {said}")
        polls += 1
        http.clock.sleep(POLL.pause_s(polls))
