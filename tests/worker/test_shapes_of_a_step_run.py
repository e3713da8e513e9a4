"""Jobs whose graphs have values that are as long as other values say: chosen samples, converted, bound and trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plain_store import PlainCluster
from weft_graph.convert import convert
from weft_graph.dimensions import is_unknown
from weft_graph.infer import largest_types
from weft_graph.ir import Constant, Graph, Node
from weft_graph.memory import program_memory
from weft_graph.program_json import programs_from_json, programs_to_json
from weft_graph.program_text.program import programs_text
from weft_graph.types import BATCH, DType
from weft_worker.bind import bind
from worker_graphs import CLASSES, FEATURES, HIDDEN, classifier
from worker_jobs import Job, programs_of, run_all, save_data

CHOSEN = [
    Node("ReduceSum", "sums", ("x", "last"), ("sum_of_x",), {"keepdims": 0}),
    Node("Greater", "above", ("sum_of_x", "zero"), ("is_chosen",)),
]
CONSTANTS = [
    Constant("last", np.array([1])),
    Constant("zero", np.array(0.0)),
    Constant("flat", np.array([-1])),
    Constant("off", np.array([0])),
]


def graph_of(choice: list[Node], loss: list[Node]) -> Graph:
    """The classifier with another loss, over the samples whose features add up to more than 0."""
    whole = classifier(DType.FLOAT64, [Node("Relu", "relu", ("h0",), ("h1",))], [], CONSTANTS)
    kept = [node for node in whole.nodes if node.name in {"fc1", "relu", "fc2"}]
    used = {name for node in (*choice, *loss) for name in node.inputs}
    constants = tuple(constant for constant in CONSTANTS if constant.name in used)
    return replace(whole, nodes=(*kept, *choice, *loss), outputs=("loss",), constants=constants)


def by_places() -> Graph:
    """As exporters write `scores[mask]`: NonZero, Transpose, Squeeze, Gather."""
    choice = [
        *CHOSEN,
        Node("NonZero", "places", ("is_chosen",), ("rows",)),
        Node("Reshape", "as_list", ("rows", "flat"), ("places",)),
        Node("Gather", "chosen_scores", ("scores", "places"), ("chosen",)),
        Node("Gather", "chosen_labels", ("labels", "places"), ("classes",)),
    ]
    return graph_of(choice, [_summed(("chosen", "classes"), "loss", "sum")])


def by_condition() -> Graph:
    choice = [
        *CHOSEN,
        Node("Compress", "chosen_scores", ("scores", "is_chosen"), ("chosen",), {"axis": 0}),
        Node("Compress", "chosen_labels", ("labels", "is_chosen"), ("classes",), {"axis": 0}),
    ]
    return graph_of(choice, [_summed(("chosen", "classes"), "loss", "sum")])


def by_weights() -> Graph:
    """The same loss with every shape known: what is not chosen counts 0."""
    loss = [
        _summed(("scores", "labels"), "losses", "none"),
        Node("Cast", "as_weights", ("is_chosen",), ("weights",), {"to": 11}),
        Node("Mul", "weigh", ("losses", "weights"), ("weighed",)),
        Node("ReduceSum", "total", ("weighed",), ("loss",), {"keepdims": 0}),
    ]
    return graph_of(CHOSEN, loss)


def _summed(reads: tuple[str, str], writes: str, reduction: str) -> Node:
    return Node("SoftmaxCrossEntropyLoss", "cross_entropy", reads, (writes,), {"reduction": reduction})


def trained(graph: Graph, data: Path, steps: int = 6) -> dict[str, np.ndarray]:
    """The parameters after some steps of two slots, with batches of 11 and 10 samples and a short last one."""
    job = Job(programs_of(graph, {}), data, steps, (0, 70), slots=2, batch=21, lr=0.02)
    draw = np.random.default_rng(5)
    shapes = {"w1": (FEATURES, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
    cluster = PlainCluster({key: draw.uniform(-0.5, 0.5, shape) for key, shape in shapes.items()}, 2, job.lr)
    for records in run_all(job, cluster.store):
        assert records.steps == list(range(1, steps + 1)), records.events
    return {key: entry.value for key, entry in cluster.keys.items()}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_data(tmp_path / "samples.npz", 70)


@pytest.mark.parametrize("graph", [by_places, by_condition], ids=lambda make: make.__name__)
def test_chosen_samples_train_as_weighed_ones_do(graph, data):
    expected, found = trained(by_weights(), data), trained(graph(), data)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-10, atol=1e-12, err_msg=key)


@pytest.mark.parametrize("graph", [by_places, by_condition], ids=lambda make: make.__name__)
def test_programs_are_written_read_bound_and_estimated(graph):
    programs = convert(graph(), loss="loss", metrics={})
    again = programs_from_json(programs_to_json(programs))
    assert again.train.types == programs.train.types
    assert "?" in programs_text(programs)
    for batch in (4, 9):
        plan = bind(again.train, {BATCH: batch})
        open_values = [name for name, type_ in zip(plan.names, plan.types, strict=True) if not type_.is_static]
        assert "chosen" in open_values
        assert all(is_unknown(dim) for type_ in plan.types for dim in type_.shape if isinstance(dim, str))
        # All of a batch may be chosen, and never more.
        memory = program_memory(again.train, {BATCH: batch})
        assert memory.unknown == 0
        made = [type_ for name, type_ in largest_types(again.train, {BATCH: batch}).items() if name in open_values]
        assert all(type_.static_shape[0] == batch or type_.shape[-1] == batch for type_ in made)
        assert sum(type_.nbytes for type_ in made) < memory.total
