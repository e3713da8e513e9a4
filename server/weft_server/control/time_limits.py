"""How long a job may take from one state to the next, and whom to name when it takes longer."""

from __future__ import annotations

from dataclasses import dataclass

from weft.api.lifecycle import AllocationState, JobState
from weft_server.control.leases import Places

STARTED = frozenset({AllocationState.RUNNING, AllocationState.DONE})
"""States of a worker that has begun: a fast one may be done before the last has begun."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """In seconds."""

    start_s: float = 60.0
    """From placed to started: enough to load programs and make first values."""
    keep_s: float = 300.0
    """From trained to kept: enough to pull and bring some gigabytes."""


def overdue(state: JobState, places: Places, limits: TimeLimits) -> str:
    """Why a job whose deadline has passed fails: who has not done what."""
    if state is JobState.FINISHING and places.keeper is not None:
        return f"{places.keeper.who} did not bring the final parameters within {limits.keep_s:g} s"
    late = [lease for lease in places.shards if lease.state is not AllocationState.READY]
    goal = "to be ready"
    if not late:
        late = [lease for lease in places.workers if lease.state not in STARTED]
        goal = "to run"
    who = ", ".join(lease.who for lease in late)
    return f"not started within {limits.start_s:g} s: it waits for {who} {goal}"
