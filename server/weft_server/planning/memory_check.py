"""Whether a job fits in memory: its parameters on the shards, a step's values on a worker. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.api.problem import FieldError
from weft_graph.program import Programs
from weft_graph.rules.built_in import rule_name
from weft_server.planning.memory_estimate import evaluate_samples, peak, store_memory, train_samples
from weft_server.planning.plan import JobPlan


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one job may take, in bytes."""

    parameter_bytes: int = 64 << 30
    """Parameters with the optimizer's state, over all shards; a table as if every row were touched."""
    step_bytes: int = 64 << 30
    """A worker's values of one step, as the nodes run one after the other."""
    machine_bytes: int | None = None
    """Where all processes of a job are on one machine: what it has for all of them, but for tables, of which only the
    rows that are touched are in memory."""


def memory_errors(plan: JobPlan, programs: Programs, bounds: Bounds) -> Iterator[FieldError]:
    """What takes too much. Raises GraphError where the data's sizes do not fit an operator."""
    store = store_memory(plan)
    tables = store.table_bytes + store.table_state_bytes
    kept = store.parameter_bytes + store.state_bytes + store.previous_bytes + tables
    if kept > bounds.parameter_bytes:
        before = ", and those before the last step," if store.previous_bytes else ""
        what = f"the parameters with the state of optimizer {rule_name(plan.rule)!r}{before} take {kept} bytes"
        yield FieldError(pointer="/graph/parameters", detail=_more(what, bounds.parameter_bytes))
    evaluated = evaluate_samples(plan)
    peaks = []
    looked_at = [(programs.train, train_samples(plan))]
    looked_at += [] if evaluated is None else [(programs.evaluate, evaluated)]
    for program, samples in looked_at:
        bytes_held = peak(plan, program, samples)
        peaks.append(bytes_held)
        if bytes_held > bounds.step_bytes:
            what = f"a worker's {samples} samples of a step of the {program.role} program take {bytes_held} bytes"
            yield FieldError(pointer="/data/batch_size", detail=_more(what, bounds.step_bytes))
    dense = store.parameter_bytes + store.state_bytes + store.previous_bytes
    together = dense + plan.workers * max(peaks)
    if bounds.machine_bytes is not None and together > bounds.machine_bytes:
        detail = (
            f"the job takes {together} bytes of memory: its parameters with their optimizer's state {dense}, and a "
            f"step {max(peaks)} on each of {plan.workers} workers; the machine that all of them are on has "
            f"{bounds.machine_bytes}: a smaller batch, `accumulate` or fewer workers take less"
        )
        yield FieldError(pointer="/data/batch_size", detail=detail)


def _more(what: str, limit: int) -> str:
    return f"{what}; this server allows {limit}"
