"""Waiting for a place: each new reason is told, once."""

from __future__ import annotations

from sdk_fakes import answers, job
from weft.api.lifecycle import JobState
from weft.event_stream import await_placement


def test_reasons_are_told_as_they_change_until_the_job_is_placed() -> None:
    waits = [
        job(state=JobState.PENDING, reason=reason) for reason in ("needs 5 workers", "needs 5 workers", "1 is busy")
    ]
    script = answers(*waits, job(state=JobState.STARTING))
    told = [notice.text for notice in await_placement(script.client().http, "job-1")]
    assert told == ["pending: needs 5 workers", "pending: 1 is busy"]
