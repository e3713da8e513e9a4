"""Whether a job can go on from another one's snapshot. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from weft.api.problem import FieldError
from weft_server.plan import JobPlan
from weft_server.run_snapshots import unfit


def resume_errors(plan: JobPlan, before: JobPlan, step: int) -> Iterator[FieldError]:
    """What of a job does not fit the snapshot of an earlier one, which is of that step."""
    if why := unfit(plan):
        yield FieldError(pointer="/resume", detail=f"such a job has no snapshots to go on from: {why}")
        return
    held = {key.key: key for key in before.keys}
    for key in plan.keys:
        old = held.get(key.key)
        if old is None:
            yield FieldError(pointer="/resume", detail=f"that job has no parameter {key.key!r}", node=key.key)
        elif (old.dtype, old.shape) != (key.dtype, key.shape):
            was, is_now = f"{old.dtype}{old.shape}", f"{key.dtype}{key.shape}"
            detail = f"parameter {key.key!r} is {is_now}, that job's is {was}"
            yield FieldError(pointer="/resume", detail=detail, node=key.key)
    if plan.rule != before.rule:
        detail = "that job's rule is another, with state of its own; init_from takes its values alone"
        yield FieldError(pointer="/rule", detail=detail)
    if plan.average is not None and before.average is None:
        yield FieldError(pointer="/average", detail="that job has no averages to go on with")
    if plan.slice_bytes != before.slice_bytes:
        detail = f"{plan.slice_bytes}: that job's slices are of {before.slice_bytes} bytes"
        yield FieldError(pointer="/parallelism/slice_bytes", detail=detail)
    if plan.steps <= step:
        detail = f"the job goes on from step {step}: {plan.steps} steps are done already; give more of them"
        yield FieldError(pointer="/run", detail=detail)
