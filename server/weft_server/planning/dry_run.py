"""What a checked job would be, without submitting it. Pure."""

from __future__ import annotations

from weft.api.dry_run import DryRun, Passes
from weft.api.job import JobSpec
from weft_graph.program_json import programs_from_json
from weft_server.planning.memory_estimate import snapshot_cost, step_traffic, store_memory, worker_memory
from weft_server.planning.plan import JobPlan
from weft_server.planning.telling import told_passes, told_programs


def dry_run_of(
    plan: JobPlan,
    waits_for: str | None,
    spec: JobSpec | None = None,
    passes: Passes | None = None,
    snapshots: str | None = None,
) -> DryRun:
    """The plan with estimates and programs; with `spec`, also what its choices of `recompute` would take, and with
    `passes` what each pass does. Its `snapshots` would be kept there."""
    programs = programs_from_json(plan.programs)
    return DryRun(
        name=plan.name,
        workers=plan.workers,
        shards=plan.shards,
        steps=plan.steps,
        steps_per_epoch=plan.steps_per_epoch,
        keys=plan.keys,
        slices=plan.slices,
        optimizer=plan.rule,
        hyper=plan.hyper,
        given=[] if plan.given is None else plan.given.names,
        worker_memory=worker_memory(plan, programs, spec),
        store_memory=store_memory(plan),
        step_traffic=step_traffic(plan, programs),
        beginning=plan.beginning,
        snapshot=snapshot_cost(plan, snapshots),
        waits_for=waits_for,
        programs=plan.programs,
        text=told_programs(plan, programs),
        passes="" if spec is None or passes is None else told_passes(spec, plan, full=passes is Passes.FULL),
    )
