"""What a checked job would be, without submitting it: estimates, its programs' text, what each pass did. Pure."""

from __future__ import annotations

from collections.abc import Set

from weft.api.dry_run import DryRun, Passes
from weft.api.job import JobSpec, Mode, UpdateBy
from weft_graph.convert import convert
from weft_graph.json_form import graph_from_json
from weft_graph.program import Programs
from weft_graph.program_json import programs_from_json
from weft_graph.program_text.listing import Setting
from weft_graph.program_text.passes import Recorder, passes_text
from weft_graph.program_text.program import programs_text
from weft_graph.types import BATCH
from weft_server.planning.estimate import snapshot_cost, step_traffic, store_memory, train_samples, worker_memory
from weft_server.planning.options import options_of
from weft_server.planning.plan import JobPlan, key_slices
from weft_server.planning.rule_planning import plan_rule


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
    given = [] if plan.given is None else plan.given.names
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
        given=given,
        lacking=plan.lacking(given) if plan.resume is None else None,
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


def told_programs(plan: JobPlan, programs: Programs) -> str:
    """The programs' text, with where this job's values lie and what a worker's step holds."""
    setting = Setting(
        workers=plan.workers,
        shards=plan.shards,
        slice_bytes=plan.slice_bytes,
        dims=_dims(plan),
        slices=_slices(plan, {key.key for key in programs.keys}),
        updated_by_workers=plan.update is UpdateBy.WORKERS or not plan.shards,
        waits=plan.mode is Mode.SYNC,
        commits=_commits(plan),
    )
    return programs_text(programs, setting)


def _slices(plan: JobPlan, known: Set[str]) -> dict[str, int]:
    """Of each key that shards keep in slices."""
    if not plan.shards:
        return {}
    return {key.key: key_slices(key, plan.slice_bytes) for key in plan.keys if key.key in known and not key.rows}


def _commits(plan: JobPlan) -> str:
    if plan.commit is None:
        return ""
    clip, scaling = plan.commit.clip_norm, plan.commit.loss_scaling
    clips = "" if clip is None else f"to shorten the whole gradient to a norm of {clip:g}"
    scales = "" if scaling is None else "to skip a step whose gradient overflows under the loss scale"
    skips = "" if scaling is not None or not plan.commit.skip else "to skip a step whose gradient is not finite"
    return " and ".join(filter(None, (clips, scales, skips)))


def told_passes(spec: JobSpec, plan: JobPlan, *, full: bool) -> str:
    """What each pass did to the job's graph; with `full`, each node that came and went. Converts it again."""
    recorder = Recorder()
    options = options_of(spec, plan_rule(spec.optimizer), _dims(plan))
    convert(graph_from_json(spec.graph), loss=spec.loss, metrics=spec.metrics, options=options, watch=recorder)
    return passes_text(recorder.runs, full=full, dims=_dims(plan))


def _dims(plan: JobPlan) -> dict[str, int]:
    return {**plan.dims, BATCH: train_samples(plan)}
