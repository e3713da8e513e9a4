"""A rule from a script to the store: what a job's store does to a key is what `apply` does here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from server_specs import save_rows, spec_json
from store_cluster import NamedStore
from weft import ops
from weft.api.job import JobSpec
from weft.optimizer_graph import CustomOptimizer
from weft_graph.rules.schedule import value_at
from weft_kvstore.description.records import descriptions
from weft_server.planning.check import read_and_check
from weft_server.planning.estimate import Bounds

WAIT_S = 60.0


@weft.custom_optimizer(state={"velocity": 0.25}, lr=0.1, momentum=0.9)
def nesterov(weight: Any, gradient: Any, velocity: Any, step: Any, lr: Any, momentum: Any) -> Any:
    velocity = momentum * velocity + gradient
    return weight - lr * (gradient + momentum * velocity) / step, {"velocity": velocity}


@weft.custom_optimizer(lr=0.1, trust=0.02)
def lars(weight: Any, gradient: Any, lr: Any, trust: Any) -> Any:
    def norm(x: Any) -> Any:
        return ops.sqrt(ops.reduce_sum(x * x))

    return weight - lr * trust * norm(weight) / norm(gradient) * gradient


@pytest.mark.parametrize("rule", [nesterov, lars], ids=lambda rule: rule.name)
def test_a_job_trains_with_the_rule_its_schedules_and_multipliers(rule: CustomOptimizer, tmp_path: Path) -> None:
    """Two slots push; slices of sixteen floats cut the larger key, unless the rule needs it whole."""
    lr = weft.cosine(0.5, 0.1, steps=3, warmup=1)
    made = rule(lr=lr, multipliers={"b": {"lr": 2.0}})
    document = spec_json(save_rows(tmp_path / "rows.npz"), optimizer=made.model_dump(mode="json"))
    document["parallelism"]["slice_bytes"] = 64
    plan = read_and_check(JobSpec.model_validate(document), None, Bounds())
    store = plan.store("job", 1, [""]).model_dump(mode="json")
    draw = np.random.default_rng(0)
    with NamedStore(descriptions.from_builtins(store)) as local:
        slots = [local.at_slot(slot) for slot in range(2)]
        for key, shape, factor in (("w", (4, 3), 1.0), ("b", (3,), 2.0)):
            weight = local.pull(key, 0).result(WAIT_S).reshape(shape)
            state: dict[str, Any] | None = None
            for step in range(4):
                gradients = [draw.standard_normal(shape).astype(np.float32) for _ in slots]
                for slot, gradient in zip(slots, gradients, strict=True):
                    slot.push(key, step, gradient.copy()).result(WAIT_S)
                number = value_at(lr.document(), step) * factor
                weight, state = rule.apply(weight, gradients[0] + gradients[1], state, step=step + 1, lr=number)
            given = local.pull(key, 4).result(WAIT_S)
            assert given.reshape(shape).tobytes() == weight.tobytes()
            kept = local.pull(key, 4, state=True).result(WAIT_S)
            assert {name: array.tobytes() for name, array in kept.items()} == {
                name: array.tobytes() for name, array in (state or {}).items()
            }
