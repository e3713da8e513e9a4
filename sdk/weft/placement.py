"""Waiting for a pending job to be placed, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterator

from weft.absence import AWAY, DEFAULT_RESUMPTION, Absence, Resumption
from weft.api.job import Job
from weft.api.lifecycle import JobState
from weft.event_stream import Notice
from weft.http import Http, Retry

POLL = Retry(first_s=0.1, longest_s=2.0)
"""How a pending job is asked for: often at first, since most jobs start at once."""


def await_placement(http: Http, job: str, *, resumption: Resumption = DEFAULT_RESUMPTION) -> Iterator[Notice]:
    """Ends once the job is not pending any more. Gives each new reason why it is, and when the server does not answer.

    Raises ConnectError and its like when the server was away for `resumption.patience_s`.
    """
    absence = Absence(http, resumption)
    said, polls = "", 0
    while True:
        try:
            found = http.call(Job, "GET", f"/v1/jobs/{job}")
        except AWAY as error:
            if not absence.failures:
                yield Notice(absence.notice)
            said = ""  # once it answers again, the reason is news again
            absence.endure(error)
            continue
        absence.end()
        if found.state is not JobState.PENDING:
            return
        if found.reason and found.reason != said:
            said = found.reason
            yield Notice(f"{JobState.PENDING.value}: {said}")
        polls += 1
        http.clock.sleep(POLL.pause_s(polls))
