"""Makes a job's plan of what was submitted and what the converter made of it. Pure; checks nothing."""

from __future__ import annotations

from collections.abc import Iterable

from weft.api.data import Rows
from weft.api.job import JobSpec, Parallelism, ParameterInfo, UpdateBy
from weft.api.store import InitializerSpec, KeySpec, gradient_key
from weft_data.source import Description
from weft_graph.ir import Input
from weft_graph.program import KeyPlan, Programs, Update
from weft_graph.program_json import programs_to_json
from weft_graph.weft_domain import SEND, SEND_ROWS
from weft_server.planning.plan import JobPlan
from weft_server.planning.rule_planning import RulePlan
from weft_server.planning.training_check import commit_of


def plan_of(spec: JobSpec, rule: RulePlan, programs: Programs, source: Description) -> JobPlan:
    """The plan; training rows that are left out are all of the source's."""
    train = spec.data.train or Rows(start=0, stop=source.rows)
    steps_per_epoch = -(-(train.stop - train.start) // spec.data.batch_size)
    return JobPlan(
        name=spec.name,
        programs=programs_to_json(programs),
        data=spec.data.model_copy(update={"train": train}),
        seed=spec.seed,
        steps=spec.run.steps or (spec.run.epochs or 0) * steps_per_epoch,
        steps_per_epoch=steps_per_epoch,
        evaluate_every=spec.run.evaluate_every,
        workers=spec.parallelism.workers,
        shards=spec.parallelism.shards,
        merge=spec.parallelism.merge,
        slice_bytes=spec.parallelism.slice_bytes,
        keys=_keys(programs, spec.parallelism, rule),
        parameters=[_parameter(key) for key in programs.keys],
        rule=rule.rule,
        hyper=rule.hyper,
        mode=spec.parallelism.mode,
        update=spec.parallelism.update,
        keep_state=spec.keep_state,
        accumulate=spec.accumulate,
        average=spec.ema,
        evaluate_average=spec.evaluate_ema,
        compression=spec.compression,
        commit=commit_of(spec),
        dims=dims_of(spec, programs.train.inputs, source),
        max_restarts=spec.max_restarts,
        snapshot_every_s=spec.snapshot_every_s,
        stop_when=spec.stop_when,
        keep_best=spec.keep_best,
        on_nan=spec.on_nan,
        content=source.content,
        state_arrays=len(rule.states) + (spec.ema is not None),
    )


def _keys(programs: Programs, parallelism: Parallelism, rule: RulePlan) -> list[KeySpec]:
    """Every slot contributes to what the train program sends: all run the same one. To another key nobody does.

    Where workers update, the gradients of dense keys have keys of their own, and nobody contributes to the weights.
    Without shards nothing is merged, and the worker updates either way.
    """
    sent = {node.attributes["key"] for node in programs.train.nodes if node.op_type in {SEND, SEND_ROWS}}
    by_store = parallelism.update is UpdateBy.SHARDS or not parallelism.shards
    keys: list[KeySpec] = []
    for key in programs.keys:
        planned = _key(key, parallelism.workers if key.key in sent else 0, rule)
        if by_store or key.rows or key.update is not Update.RULE or not planned.slots:
            keys.append(planned)
        else:
            keys += [planned.model_copy(update={"slots": []}), _gradient(planned)]
    return keys


def _gradient(key: KeySpec) -> KeySpec:
    zeros = InitializerSpec(op_type="ConstantOfShape", attributes={"value": 0.0})
    changes = {"key": gradient_key(key.key), "initializer": zeros, "update": Update.GRADIENT.value}
    changes |= {"whole": False, "multipliers": {}}
    return key.model_copy(update=changes)


def dims_of(spec: JobSpec, inputs: Iterable[Input], source: Description) -> dict[str, int]:
    """Symbolic dimension -> size, from the rows of the columns that feed the graph's inputs."""
    sizes: dict[str, int] = {}
    for given in inputs:
        column = source.column(spec.data.columns.get(given.name, ""))
        if column is not None:
            for asked, there in zip(given.type.shape[1:], column.row_shape, strict=True):
                if isinstance(asked, str):
                    sizes[asked] = there
    return sizes


def _key(key: KeyPlan, contributing: int, rule: RulePlan) -> KeySpec:
    by_rule = key.update is Update.RULE
    made_by = InitializerSpec(op_type=key.initializer.op_type, attributes=dict(key.initializer.attributes))
    return KeySpec(
        key=key.key,
        dtype=key.type.dtype.value,
        shape=list(key.type.static_shape),
        initializer=made_by,
        update=key.update.value,
        priority=key.priority,
        slots=list(range(contributing)),
        rows=key.rows,
        whole=bool(rule.whole) and by_rule,
        multipliers=rule.multipliers(key.key) if by_rule else {},
        sparse="standard" if key.rows and by_rule and contributing and not key.lazy_update else "lazy",
    )


def _parameter(key: KeyPlan) -> ParameterInfo:
    return ParameterInfo(
        name=key.key,
        dtype=key.type.dtype.value,
        shape=list(key.type.static_shape),
        trainable=key.update is Update.RULE,
    )
