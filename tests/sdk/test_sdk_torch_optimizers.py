"""Every option of `torch.optim`'s optimizers updates as PyTorch does, in a job's store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from server_specs import save_rows, spec_json
from store_cluster import NamedStore
from weft.api.job import JobSpec
from weft_kvstore import Key, describe
from weft_kvstore.description.records import descriptions
from weft_server.planning.check import read_and_check
from weft_server.planning.estimate import Bounds
from weft_server.planning.rule_planning import plan_rule

torch = pytest.importorskip("torch")

WAIT_S = 60.0
STEPS = 10
OPTIMIZERS = ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop"]


def described(path: Path, optimizer: Any) -> Any:
    """The store of a job that is trained with it."""
    document = spec_json(save_rows(path), optimizer=optimizer.model_dump(mode="json"))
    plan = read_and_check(JobSpec.model_validate(document), None, Bounds())
    return descriptions.from_builtins(plan.store("job", 1, [""]).model_dump(mode="json"))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {"momentum": 0.9, "dampening": 0.3}),
        ("SGD", {"momentum": 0.9, "dampening": 1.0, "weight_decay": 0.1}),
        ("SGD", {"dampening": 0.3}),
        ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("Adam", {"weight_decay": 0.1}),
        ("Adam", {"weight_decay": 0.1, "amsgrad": True, "betas": (0.5, 0.6), "eps": 1e-3}),
        ("AdamW", {"amsgrad": True, "betas": (0.5, 0.6)}),
        ("Adagrad", {"lr_decay": 0.2, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-4}),
        ("RMSprop", {"momentum": 0.9}),
        ("RMSprop", {"centered": True, "weight_decay": 0.1}),
        ("RMSprop", {"momentum": 0.5, "centered": True, "alpha": 0.9, "eps": 1e-4}),
        *((name, {}) for name in OPTIMIZERS),
    ],
    ids=str,
)
def test_a_job_updates_its_parameters_as_pytorch_does(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    with NamedStore(described(tmp_path / "rows.npz", getattr(weft, name)(lr=0.05, **options))) as store:
        weight = torch.nn.Parameter(torch.from_numpy(store.pull("w", 0).result(WAIT_S).copy()))
        optimizer = getattr(torch.optim, name)([weight], lr=0.05, **options)
        for step in range(STEPS):
            gradient = draw.standard_normal(tuple(weight.shape), np.float32)
            # The job has two slots, whose gradients are summed.
            for slot in range(2):
                store.at_slot(slot).push("w", step, gradient / 2).result(WAIT_S)
            weight.grad = torch.from_numpy(gradient)
            optimizer.step()
        given = store.pull("w", STEPS).result(WAIT_S)
    np.testing.assert_allclose(given, weight.detach().numpy(), rtol=1e-6, atol=1e-6)


def test_rows_of_a_table_are_updated_as_pytorch_updates_those_of_a_sparse_gradient() -> None:
    """Of those that take sparse gradients, Adagrad alone has an option that the built-in rules have not."""
    draw = np.random.default_rng(0)
    plan = plan_rule(weft.Adagrad(lr=0.05, lr_decay=0.2))
    table = Key(shape=(9, 3), rows=True, initializer={"uniform": [-0.5, 0.5]})
    checks = torch.sparse.check_sparse_tensor_invariants(enable=True)
    with checks, NamedStore(describe({"t": table}, rule=plan.rule, **plan.hyper)) as store:
        ids = np.arange(9)
        weight = torch.nn.Parameter(torch.from_numpy(store.pull("t", 0, ids).result(WAIT_S).copy()))
        optimizer = torch.optim.Adagrad([weight], lr=0.05, lr_decay=0.2)
        for step in range(STEPS):
            met = np.sort(draw.choice(9, 4, replace=False))
            rows = draw.standard_normal((4, 3), np.float32)
            store.push("t", step, rows, met).result(WAIT_S)
            weight.grad = torch.sparse_coo_tensor(met[None], torch.from_numpy(rows), (9, 3))
            optimizer.step()
        given = store.pull("t", STEPS, ids).result(WAIT_S)
    np.testing.assert_allclose(given, weight.detach().numpy(), rtol=1e-6, atol=1e-6)
