"""Jobs with a table whose updates are not lazy: at each step its rule runs on all rows, as on those of a dense key."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

import rule_documents
import weft
from store_cluster import NamedStore, served
from weft.api.lifecycle import AllocationEvent
from weft.api.optimizer import OptimizerSpec
from weft.api.store import AverageSpec, CommitSpec
from weft_data.schedule import BatchPlan
from weft_graph.rules.built_in import stored_rule
from weft_kernels.kernel import Array
from weft_kvstore.description.records import descriptions
from worker_graphs import BAG, CLASSES, VOCABULARY, bags
from worker_jobs import BAG_COLUMNS, WAIT_S, Job, programs_of, run_all

BATCH, STEPS, EARLY = 8, 16, 5
SEEN, LATER = 30, 15
"""Steps before `EARLY` read rows 0 to `SEEN`, those after it 0 to `LATER`; nobody ever reads the others."""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Two workers and two shards; each sample is read once."""
    rows, seed = STEPS * BATCH, 11
    draw = np.random.default_rng(6)
    ids = np.empty((rows, BAG), np.int64)
    for step in range(STEPS):
        _, samples = BatchPlan(0, rows, BATCH, seed, True).at(step)
        ids[samples] = draw.integers(0, SEEN if step < EARLY else LATER, (BATCH, BAG))
    np.savez(tmp_path / "bags.npz", ids=ids, y=ids.sum(axis=1) % CLASSES)
    made = programs_of(bags(lazy_update=False))
    return Job(made, tmp_path / "bags.npz", STEPS, (0, rows), slots=2, batch=BATCH, seed=seed, columns=BAG_COLUMNS)


def ruled(job: Job, spec: OptimizerSpec) -> Job:
    rule, hyper = stored_rule(spec.rule, spec.hyper())  # type: ignore[union-attr]
    return replace(job, rule=rule, hyper=hyper)


def trained(job: Job, **table: bool) -> dict[str, Array]:
    """The final document of the job, over two shards; `table` changes what is said of the table."""
    job = replace(job, programs=programs_of(bags(**{"lazy_update": False, **table})), shards=("", ""))
    with ExitStack() as stack:
        at, _ = stack.enter_context(served(descriptions.from_builtins(job.store_spec().model_dump(mode="json"))))
        records = run_all(replace(job, shards=at.shards))
    assert [each.last for each in records] == [(AllocationEvent.DONE, None)] * job.slots
    return load(records[job.keeper].uploads[-1][0])


def first_values(job: Job) -> dict[str, Array]:
    description = descriptions.from_builtins(replace(job, shards=("",)).store_spec().model_dump(mode="json"))
    with NamedStore(description) as store:
        first = {key: store.pull(key, 0).result(WAIT_S) for key in ("w", "b")}
        first["table"] = store.pull("table", 0, np.arange(VOCABULARY)).result(WAIT_S)
    return first


def trained_by_torch(job: Job, optimizer: str, options: Mapping[str, Any]) -> Array:
    """The table after the same steps of `nn.Embedding(sparse=False)` on whole batches."""
    torch = pytest.importorskip("torch")
    first = {key: torch.from_numpy(value.copy()) for key, value in first_values(job).items()}
    table = torch.nn.Embedding.from_pretrained(first["table"], freeze=False, sparse=False)
    w, b = (torch.nn.Parameter(first[key]) for key in ("w", "b"))
    descent = getattr(torch.optim, optimizer)([table.weight, w, b], **options)
    with np.load(job.data) as columns:
        ids, labels = torch.from_numpy(columns["ids"]), torch.from_numpy(columns["y"])
    for step in range(job.steps):
        _, samples = BatchPlan(*job.train, job.batch, job.seed, True).at(step)
        descent.zero_grad()
        scores = table(ids[samples]).mean(dim=1) @ w + b
        torch.nn.functional.cross_entropy(scores, labels[samples]).backward()
        descent.step()
    found: Array = table.weight.detach().numpy()
    return found


@pytest.mark.parametrize(
    ("rule", "optimizer", "options"),
    [
        (weft.Adam(lr=0.05), "Adam", {"lr": 0.05}),
        (weft.SGD(lr=0.5, momentum=0.9), "SGD", {"lr": 0.5, "momentum": 0.9}),
        (weft.AdamW(lr=0.05, weight_decay=0.1), "AdamW", {"lr": 0.05, "weight_decay": 0.1}),
        (weft.SGD(lr=0.5, weight_decay=0.01), "SGD", {"lr": 0.5, "weight_decay": 0.01}),
    ],
    ids=["Adam", "SGD with momentum", "AdamW", "SGD with weight decay"],
)
def test_a_table_trains_as_a_dense_embedding_of_pytorch_does(
    job: Job, rule: OptimizerSpec, optimizer: str, options: Mapping[str, Any]
) -> None:
    job = ruled(job, rule)
    expected = trained_by_torch(job, optimizer, options)
    np.testing.assert_allclose(trained(job)["table"], expected, rtol=0, atol=1e-9)
    lazy = np.abs(trained(job, lazy_update=True)["table"] - expected).max(axis=1)
    assert (lazy[LATER:SEEN] > 1e-3).all(), "rows that were read early move on"
    never, decays = lazy[SEEN:], "weight_decay" in options
    assert (never > 1e-3).all() if decays else not never.any(), "rows that nobody reads decay, and do nothing else"


ADAMW = {"lr": 0.05, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.1}


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 3, "batch": 2},
        {"slots": 1, "mode": "async"},
        {"local": True},
        {"accumulate": 2},
        {"average": AverageSpec(decay=0.8, start=4)},
        {"commit": CommitSpec(clip_norm=0.05)},
        {"hyper": {**ADAMW, "lr": {"schedule": "linear", "start": 0.1, "end": 0.01, "steps": 12}}},
        {"rule": rule_documents.momentum(), "hyper": {}},
    ],
    ids=str,
)
def test_a_table_without_lazy_updates_is_what_the_dense_parameter_is(job: Job, options: Mapping[str, Any]) -> None:
    """Also the rule's state, and averages."""
    job = replace(job, **{"rule": "adamw", "hyper": ADAMW, "keep_state": True, **options})
    found, dense = trained(job), trained(job, row_sparse=False)
    assert set(found) == set(dense)
    for name, value in dense.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-12, err_msg=name)
