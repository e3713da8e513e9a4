"""Runs of graphs with loops: they train as without, and end when they are told to, however many turns there are."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from plain_store import PlainCluster
from weft_graph.ir import Constant, Graph, Node, Subgraph
from weft_graph.types import DType
from worker_graphs import CLASSES, FEATURES, HIDDEN, classifier, mlp
from worker_jobs import WAIT_S, Job, Records, programs_of, run_all, run_of, save_data

ROWS = 64


def looped(turns: int) -> Graph:
    """The two-layer net whose Relu is the body of a loop: of one turn it is that net, as of any number."""
    body = Subgraph(("turn", "go", "h"), (), (Node("Relu", "relu", ("h",), ("active",)),), ("go", "active"))
    loop = Node("Loop", "loop", ("turns", "", "h0"), ("h1",), {"body": body})
    return classifier(DType.FLOAT64, [loop], [], [Constant("turns", np.array(turns))])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_data(tmp_path / "samples.npz", ROWS)


def cluster_of(job: Job) -> PlainCluster:
    draw = np.random.default_rng(5)
    shapes = {"w1": (FEATURES, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
    return PlainCluster({key: draw.uniform(-0.5, 0.5, shape) for key, shape in shapes.items()}, job.slots, job.lr)


def trained(graph: Graph, data: Path) -> dict[str, np.ndarray]:
    job = Job(programs_of(graph), data, 6, (0, ROWS), slots=2, batch=16)
    keeper, _ = run_all(job, cluster_of(job).store)
    ((document, _, _),) = keeper.uploads
    return load(document)


@pytest.mark.parametrize("turns", [1, 3])
def test_a_loop_trains_as_its_body_without_one(data: Path, turns: int) -> None:
    plain, through = trained(mlp(), data), trained(looped(turns), data)
    assert through.keys() == plain.keys()
    for name, value in plain.items():
        np.testing.assert_allclose(through[name], value, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("serial", [True, False])
def test_a_run_in_a_loop_without_end_is_stopped(data: Path, serial: bool) -> None:
    job = Job(programs_of(looped(1 << 62)), data, 6, (0, ROWS), batch=16)
    before, records, turning = set(threading.enumerate()), Records(), threading.Event()
    run = run_of(job, 0, records, lambda task: cluster_of(job).store(0), serial=serial)
    check = run._check

    def checked() -> None:
        turning.set()
        check()

    run._check = checked  # type: ignore[method-assign]  # heard when a turn begins
    run.start()
    assert turning.wait(WAIT_S)
    run.stop()
    assert records.over.wait(WAIT_S)
    assert run.join(WAIT_S)
    assert set(threading.enumerate()) - before == set()
