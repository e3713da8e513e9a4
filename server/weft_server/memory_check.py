"""Whether a job fits in memory: its parameters on the shards, a step's values on a worker. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.api.data import DataSpec
from weft.api.problem import FieldError
from weft_data.cut import part
from weft_data.source import Description
from weft_graph.ir import Graph
from weft_graph.memory import program_memory
from weft_graph.program import Program, Programs
from weft_graph.types import BATCH
from weft_server.plan import JobPlan

STATE_ARRAYS = {"sgd": 0, "momentum": 1, "adam": 2}
"""Arrays of a parameter's size that each rule keeps beside it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one job may take, in bytes."""

    parameter_bytes: int = 64 << 30
    """Parameters with the rule's state, over all shards."""
    step_bytes: int = 64 << 30
    """A worker's values of one step, as the nodes run one after the other."""


def memory_errors(
    plan: JobPlan, graph: Graph, programs: Programs, source: Description, bounds: Bounds
) -> Iterator[FieldError]:
    """What takes too much. Raises GraphError where the data's sizes do not fit an operator."""
    kept = plan.parameter_bytes * (1 + STATE_ARRAYS[str(plan.rule)])
    if kept > bounds.parameter_bytes:
        what = f"the parameters with the state of rule {plan.rule!r} take {kept} bytes"
        yield FieldError(pointer="/graph/parameters", detail=_more(what, bounds.parameter_bytes))
    dims = _sizes(plan.data, graph, source)
    held_out = plan.data.evaluate
    looked_at: list[tuple[Program, int]] = [(programs.train, min(plan.data.batch, plan.rows))]
    if held_out is not None:
        looked_at.append((programs.evaluate, min(plan.data.batch * plan.workers, held_out.stop - held_out.start)))
    for program, samples in looked_at:
        start, stop = part(samples, 0, plan.workers)
        peak = program_memory(program, {**dims, BATCH: stop - start}).peak
        if peak > bounds.step_bytes:
            what = f"a worker's {stop - start} samples of a step of the {program.role} program take {peak} bytes"
            yield FieldError(pointer="/data/batch", detail=_more(what, bounds.step_bytes))


def _sizes(data: DataSpec, graph: Graph, source: Description) -> dict[str, int]:
    """Symbolic dimension -> size, from the rows of the columns that feed the graph's inputs."""
    sizes: dict[str, int] = {}
    for given in graph.inputs:
        column = source.column(data.columns[given.name])
        assert column is not None
        for asked, there in zip(given.type.shape[1:], column.row_shape, strict=True):
            if isinstance(asked, str):
                sizes[asked] = there
    return sizes


def _more(what: str, limit: int) -> str:
    return f"{what}; this server allows {limit}"
