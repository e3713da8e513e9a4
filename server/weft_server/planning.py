"""Makes a job's plan of what was submitted and what the converter made of it. Pure; checks nothing."""

from __future__ import annotations

from weft.api.data import Rows
from weft.api.job import JobSpec, ParameterInfo
from weft.api.rule import RuleSpec
from weft.api.store import InitializerSpec, KeySpec
from weft_data.source import Description
from weft_graph.program import KeyPlan, Programs, Update
from weft_graph.program_json import programs_to_json
from weft_graph.rules import stored_rule
from weft_graph.weft_domain import SEND
from weft_server.plan import JobPlan


def plan_of(spec: JobSpec, programs: Programs, source: Description) -> JobPlan:
    """The plan; training rows that are left out are all of the source's."""
    train = spec.data.train or Rows(start=0, stop=source.rows)
    steps_per_pass = -(-(train.stop - train.start) // spec.data.batch)
    rule, hyper = rule_of(spec.rule)
    return JobPlan(
        name=spec.name,
        programs=programs_to_json(programs),
        data=spec.data.model_copy(update={"train": train}),
        seed=spec.seed,
        steps=spec.run.steps or (spec.run.passes or 0) * steps_per_pass,
        steps_per_pass=steps_per_pass,
        evaluate_every=spec.run.evaluate_every,
        workers=spec.parallelism.workers,
        shards=spec.parallelism.shards,
        merge=spec.parallelism.merge,
        slice_bytes=spec.parallelism.slice_bytes,
        keys=_keys(programs, spec.parallelism.workers),
        parameters=[_parameter(key) for key in programs.keys],
        rule=rule,
        hyper=dict(hyper),
    )


def rule_of(spec: RuleSpec) -> tuple[str, dict[str, float]]:
    """(name of the shard's rule, its hyper-parameters)."""
    return stored_rule(spec.name, spec.model_dump(exclude={"name"}))


def _keys(programs: Programs, slots: int) -> list[KeySpec]:
    """Every slot contributes to what the train program sends: all run the same one. To another key nobody does."""
    sent = {node.attributes["key"] for node in programs.train.nodes if node.op_type == SEND}
    return [_key(key, slots if key.key in sent else 0) for key in programs.keys]


def _key(key: KeyPlan, contributing: int) -> KeySpec:
    made_by = InitializerSpec(op_type=key.initializer.op_type, attributes=dict(key.initializer.attributes))
    return KeySpec(
        key=key.key,
        dtype=key.type.dtype.value,
        shape=list(key.type.static_shape),
        initializer=made_by,
        update=key.update.value,
        priority=key.priority,
        slots=list(range(contributing)),
    )


def _parameter(key: KeyPlan) -> ParameterInfo:
    return ParameterInfo(
        name=key.key,
        dtype=key.type.dtype.value,
        shape=list(key.type.static_shape),
        trainable=key.update is Update.RULE,
    )
