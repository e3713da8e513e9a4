"""What a job takes: memory of shards and workers, bytes of a snapshot and a step, and whether it may. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from weft.api.dry_run import SnapshotCost, StepMemory, StepTraffic, StoreMemory, WorkerMemory
from weft.api.job import JobSpec, Recompute
from weft.api.problem import FieldError
from weft.api.store import KeySpec
from weft_data.cut import part
from weft_graph.convert import convert
from weft_graph.cost import program_operations
from weft_graph.infer import infer_program
from weft_graph.json_form import graph_from_json
from weft_graph.memory import program_memory
from weft_graph.program import Program, Programs, Update
from weft_graph.rules.built_in import rule_name
from weft_graph.types import BATCH, TensorType
from weft_graph.weft_domain import FETCH, FETCH_ROWS, ID_BYTES, SEND, SEND_ROWS
from weft_server.planning.options import options_of
from weft_server.planning.plan import JobPlan, nbytes
from weft_server.planning.rule_planning import plan_rule

SEEN_BYTES: Final = 8
"""Of each row of a table with standard semantics: which update it has seen."""


def train_samples(plan: JobPlan) -> int:
    """The most samples of a batch that one worker computes at once."""
    return -(-_slot_samples(plan) // plan.accumulate)


def _slot_samples(plan: JobPlan) -> int:
    """The largest part of a batch that one worker has."""
    return _largest_part(min(plan.data.batch_size, plan.rows), plan.workers)


def evaluate_samples(plan: JobPlan) -> int | None:
    """The largest batch in which one worker evaluates; None where there is no evaluation."""
    held_out = plan.data.evaluate
    if held_out is None:
        return None
    return _largest_part(min(plan.data.batch_size * plan.workers, held_out.stop - held_out.start), plan.workers)


def peak(plan: JobPlan, program: Program, samples: int) -> int:
    """Bytes of a program's values. Raises GraphError where the data's sizes do not fit an operator."""
    return program_memory(program, {**plan.dims, BATCH: samples}).peak


def step_memory(plan: JobPlan, program: Program, samples: int) -> StepMemory:
    """One run of the program in parts. Raises GraphError."""
    dims = {**plan.dims, BATCH: samples}
    memory = program_memory(program, dims)
    return StepMemory(
        given_bytes=memory.given,
        intermediate_bytes=memory.intermediates,
        live_bytes=memory.live,
        arena_bytes=memory.arena,
        kept_bytes=memory.kept,
        unknown=memory.unknown,
        operations=program_operations(program, dims),
    )


def recomputing(plan: JobPlan, spec: JobSpec) -> dict[Recompute, StepMemory]:
    """A training step under each choice of what is computed again. Raises GraphError."""
    graph, rule, samples = graph_from_json(spec.graph), plan_rule(spec.optimizer), train_samples(plan)
    found = {}
    for choice in Recompute:
        options = options_of(spec.model_copy(update={"recompute": choice}), rule, {**plan.dims, BATCH: samples})
        program = convert(graph, loss=spec.loss, metrics=spec.metrics, options=options).train
        found[choice] = step_memory(plan, program, samples)
    return found


def worker_memory(plan: JobPlan, programs: Programs, spec: JobSpec | None = None) -> WorkerMemory:
    """On the worker with the largest part; with `spec`, under every choice of `recompute`. Raises GraphError."""
    fetched = {node.attributes["key"] for node in programs.train.nodes if node.op_type == FETCH}
    own = [key for key in plan.keys if key.key in fetched]
    evaluated = evaluate_samples(plan)
    train = step_memory(plan, programs.train, train_samples(plan))
    return WorkerMemory(
        parameter_bytes=sum(map(nbytes, own)),
        state_bytes=plan.state_arrays * sum(nbytes(key) for key in plan.keys if _is_updated_by_workers(plan, key)),
        train_peak_bytes=train.peak_bytes + _accumulated(plan, programs.train),
        evaluate_peak_bytes=None if evaluated is None else peak(plan, programs.evaluate, evaluated),
        train=train,
        recompute={} if spec is None else recomputing(plan, spec),
    )


def _is_updated_by_workers(plan: JobPlan, key: KeySpec) -> bool:
    if plan.shards:
        return key.update == Update.GRADIENT.value
    return key.update == Update.RULE.value and bool(key.slots) and not key.rows


def _accumulated(plan: JobPlan, program: Program) -> int:
    """Bytes of the sums of what the parts of a step send; rows of tables are kept part by part."""
    if plan.accumulate == 1:
        return 0
    types = infer_program(program, {**plan.dims, BATCH: train_samples(plan)})
    dense = sum(types[node.inputs[0]].nbytes for node in program.nodes if node.op_type == SEND)
    rows = sum(_row_bytes(types[node.inputs[1]]) for node in program.nodes if node.op_type == SEND_ROWS)
    return dense + rows * plan.accumulate


def store_memory(plan: JobPlan) -> StoreMemory:
    """Over all shards, or in the one worker without any, as if every row of a table were touched."""
    dense = [key for key in plan.keys if not key.rows]
    tables = [key for key in plan.keys if key.rows]
    uncut = [
        *map(nbytes, (key for key in dense if key.whole)),
        min(plan.slice_bytes, max(map(nbytes, dense), default=0)),
    ]
    state = plan.state_arrays
    previous = sum(map(nbytes, dense)) if plan.hands_slots_over else 0
    total = sum(_kept(key, state) for key in plan.keys) + previous
    return StoreMemory(
        parameter_bytes=sum(map(nbytes, dense)),
        state_bytes=_state(dense, state),
        table_bytes=sum(map(nbytes, tables)),
        table_state_bytes=_state(tables, state),
        previous_bytes=previous,
        largest_shard_bytes=(
            min(total, math.ceil(total / plan.shards) + max(uncut) * (1 + state + bool(previous))) if plan.shards else 0
        ),
    )


def snapshot_cost(plan: JobPlan, location: str | None) -> SnapshotCost:
    """Of one snapshot: what the store keeps, and 8 bytes a slice."""
    return SnapshotCost(
        nbytes=sum(_kept(key, plan.state_arrays) for key in plan.keys) + 8 * plan.slices,
        files=plan.shards or 1,
        every_s=plan.snapshot_every_s,
        location=location,
        lacking=plan.no_snapshots(location),
    )


def step_traffic(plan: JobPlan, programs: Programs) -> StepTraffic:
    """Of a full batch, over all workers; nothing where there are no shards. Raises GraphError."""
    if not plan.shards:
        return StepTraffic(fetched_bytes=0, sent_bytes=0, fetched_row_bytes=0, sent_row_bytes=0)
    program = programs.train
    types = infer_program(program, {**plan.dims, BATCH: train_samples(plan)})
    sizes = {key.key: nbytes(key) for key in plan.keys}
    moved = dict.fromkeys((FETCH, SEND, FETCH_ROWS, SEND_ROWS), 0)
    for node in program.nodes:
        if node.op_type in {FETCH, SEND}:
            moved[node.op_type] += sizes[str(node.attributes["key"])]
        elif node.op_type == FETCH_ROWS:
            moved[node.op_type] += _row_bytes(types[node.outputs[0]])
        elif node.op_type == SEND_ROWS:
            moved[node.op_type] += _row_bytes(types[node.inputs[1]])
    return StepTraffic(
        fetched_bytes=moved[FETCH] * plan.workers,
        sent_bytes=moved[SEND] * plan.workers,
        fetched_row_bytes=moved[FETCH_ROWS] * plan.workers * plan.accumulate,
        sent_row_bytes=moved[SEND_ROWS] * plan.workers * plan.accumulate,
    )


def _largest_part(samples: int, workers: int) -> int:
    start, stop = part(samples, 0, workers)
    return stop - start


def _row_bytes(rows: TensorType) -> int:
    """Rows with their ids."""
    return rows.nbytes + ID_BYTES * rows.static_shape[0]


def _state(keys: Iterable[KeySpec], arrays: int) -> int:
    return sum(_kept(key, arrays) - nbytes(key) for key in keys)


def _kept(key: KeySpec, arrays: int) -> int:
    """Bytes of a key with its state. A key that nobody sends has none: no rule is ever run on it."""
    state = arrays if key.update == Update.RULE.value and key.slots else 0
    seen = SEEN_BYTES * key.shape[0] if key.sparse == "standard" else 0
    return nbytes(key) * (1 + state) + seen


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
    worker_bytes: int | None = None
    """The most that a process of any worker may take; None where nobody knows."""
    shard_bytes: int | None = None
    """The same of shards."""


Peaks: TypeAlias = Sequence[tuple[str, int, int]]
"""Of each program that a worker runs: its role, the samples that it computes at once, and the bytes that takes."""


def step_peaks(plan: JobPlan, programs: Programs) -> Peaks:
    """Raises GraphError where the data's sizes do not fit an operator."""
    run = [(programs.train, train_samples(plan)), (programs.evaluate, evaluate_samples(plan))]
    return [(each.role, samples, peak(plan, each, samples)) for each, samples in run if samples is not None]


def process_memory(plan: JobPlan, peaks: Peaks) -> dict[str, int]:
    """The plan's `worker_bytes` and `shard_bytes`. Without shards, the one worker has what they would."""
    store = store_memory(plan)
    kept = store.parameter_bytes + store.state_bytes + store.previous_bytes
    own = plan.state_arrays * sum(nbytes(key) for key in plan.keys if _is_updated_by_workers(plan, key))
    step = max(taken for _, _, taken in peaks)
    if not plan.shards:
        return {"worker_bytes": step + kept, "shard_bytes": 0}
    return {"worker_bytes": step + own, "shard_bytes": math.ceil(kept / plan.shards)}


def memory_errors(plan: JobPlan, peaks: Peaks, bounds: Bounds) -> Iterator[FieldError]:
    """What takes too much."""
    store = store_memory(plan)
    tables = store.table_bytes + store.table_state_bytes
    kept = store.parameter_bytes + store.state_bytes + store.previous_bytes + tables
    if kept > bounds.parameter_bytes:
        before = ", and those before the last step," if store.previous_bytes else ""
        what = f"the parameters with the state of optimizer {rule_name(plan.rule)!r}{before} take {kept} bytes"
        yield FieldError(pointer="/graph/parameters", detail=_more(what, bounds.parameter_bytes))
    for role, samples, taken in peaks:
        if taken > bounds.step_bytes:
            what = f"a worker's {samples} samples of a step of the {role} program take {taken} bytes"
            yield FieldError(pointer="/data/batch_size", detail=_more(what, bounds.step_bytes))
    for noun, pointer, needed, most, less in (
        ("worker", "/data/batch_size", plan.worker_bytes, bounds.worker_bytes, "a smaller batch or `accumulate` takes"),
        ("shard", "/parallelism/shards", plan.shard_bytes, bounds.shard_bytes, "of more shards, each takes"),
    ):
        if most is not None and needed > most:
            detail = (
                f"the process of a {noun} takes {needed} bytes of memory, and no {noun} of the cluster lets a job have "
                f"more than {most} (--job-memory): {less} less"
            )
            yield FieldError(pointer=pointer, detail=detail)
    dense = store.parameter_bytes + store.state_bytes + store.previous_bytes
    step = max(taken for _, _, taken in peaks)
    together = dense + plan.workers * step
    if bounds.machine_bytes is not None and together > bounds.machine_bytes:
        detail = (
            f"the job takes {together} bytes of memory: its parameters with their optimizer's state {dense}, and a "
            f"step {step} on each of {plan.workers} workers; the machine that all of them are on has "
            f"{bounds.machine_bytes}: a smaller batch, `accumulate` or fewer workers take less"
        )
        yield FieldError(pointer="/data/batch_size", detail=detail)


def _more(what: str, limit: int) -> str:
    return f"{what}; this server allows {limit}"
