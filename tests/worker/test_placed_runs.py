"""Programs of several places in a worker, which has one device: copies are the values themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from weft.api.lifecycle import AllocationEvent
from weft_graph.convert import convert
from weft_graph.passes.draft import Options
from weft_graph.program import Programs
from weft_worker.bind import bind
from weft_worker.errors import BindError
from worker_graphs import METRICS, mlp
from worker_jobs import Job, run_all, save_data


def programs(placement: dict[str, str], *, fusion: bool = True) -> Programs:
    """A net whose second layer is in another group than its first."""
    groups = {"fc1": "first", "fc2": "second"}
    graph = mlp(dropout=0.3)
    graph = replace(graph, nodes=tuple(replace(node, group=groups.get(node.name, "")) for node in graph.nodes))
    return convert(graph, loss="loss", metrics=METRICS, options=Options(placement=placement, fusion=fusion))


def test_a_placed_run_ends_with_the_bits_of_the_unplaced_one(tmp_path: Path) -> None:
    data = save_data(tmp_path / "samples.npz", 150)
    documents = []
    for placement in ({}, {"first": "cpu", "second": "cuda:1"}):
        made = programs(placement)
        assert any(node.op_type == "Copy" for node in made.train.nodes) == bool(placement)
        (records,) = run_all(Job(made, data, 6, (0, 100), evaluate=(100, 150)))
        assert records.last == (AllocationEvent.DONE, None)
        ((document, _, _),) = records.uploads
        documents.append((load(document), records.metrics))
    (plain, metrics), (placed, placed_metrics) = documents
    assert plain.keys() == placed.keys()
    for name, array in plain.items():
        np.testing.assert_array_equal(placed[name], array)
    assert metrics == placed_metrics


def test_stages_are_refused_with_the_way_of_the_value() -> None:
    made = programs({"first": "cpu", "second": "stage:1"})
    with pytest.raises(
        BindError, match=r"'weft.copy/.*@stage:1' \(Transfer\) goes from cpu to stage:1: a worker runs all"
    ):
        bind(made.train, {"batch": 4})
