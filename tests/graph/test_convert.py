"""From a user's graph to programs and keys."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from sample_graphs import accuracy, floats, ints, lenet, line, mlp, node, normalized_mlp, weight
from weft_graph.convert import convert
from weft_graph.errors import GraphError, GraphRefusedError, NoGradientError, ShapeError, UnknownOperatorError
from weft_graph.ir import Graph
from weft_graph.passes.draft import Options
from weft_graph.program import LOSS_SCALE, Program, Programs, Role, Update
from weft_kernels.evaluate import evaluate
from weft_kernels.kernel import KernelContext
from weft_kernels.run import run_nodes

GRAPHS = [mlp(), normalized_mlp(), lenet()]


def converted(graph: Graph) -> Programs:
    """Without fusion: the nodes are the user's."""
    return convert(graph, loss="loss", metrics={"accuracy": "accuracy"}, options=Options(fusion=False))


def operators(program: Program) -> Counter[str]:
    return Counter(n.op_type for n in program.nodes)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_every_node_comes_after_what_it_reads_and_every_value_has_a_type(graph: Graph) -> None:
    programs = converted(graph)
    for program in (programs.train, programs.evaluate):
        made = {i.name for i in program.inputs} | {c.name for c in program.constants}
        for n in program.nodes:
            assert {name for name in n.inputs if name} <= made, n.name
            fresh = {name for name in n.outputs if name}
            assert not fresh & made
            made |= fresh
        assert set(program.outputs.values()) <= made
        assert set(program.types) == made
        assert len({n.name for n in program.nodes}) == len(program.nodes)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_fetch_stands_before_the_first_use_and_send_after_the_gradient(graph: Graph) -> None:
    """Directly, but for Fetches and Sends beside them."""
    nodes = converted(graph).train.nodes
    for index, n in enumerate(nodes):
        if n.op_type == "Fetch":
            following = next(other for other in nodes[index:] if other.op_type != "Fetch")
            assert n.outputs[0] in following.inputs
        if n.op_type == "Send":
            before = next(other for other in nodes[index::-1] if other.op_type != "Send")
            assert n.inputs[0] in before.outputs
    assert [n.op_type for n in nodes].index("SendBarrier") == len(nodes) - 1


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_each_key_is_fetched_and_sent_once_with_its_priority(graph: Graph) -> None:
    programs = converted(graph)
    urgency = {key.key: key.priority for key in programs.keys}
    assert sorted(urgency.values()) == list(range(len(graph.parameters)))
    for op_type in ("Fetch", "Send"):
        found = [(n.attributes["key"], n.attributes["priority"]) for n in programs.train.nodes if n.op_type == op_type]
        assert dict(found) == urgency
        assert len(found) == len(urgency)


def test_a_lenet_is_sent_from_the_last_layer_to_the_first_and_is_most_urgent_at_the_first() -> None:
    programs = converted(lenet())
    layers = ["conv1", "conv2", "dense1", "dense2"]
    keys = [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]
    assert [key.key for key in sorted(programs.keys, key=lambda key: key.priority)] == keys
    sent = [str(n.attributes["key"]).split(".")[0] for n in programs.train.nodes if n.op_type == "Send"]
    assert list(dict.fromkeys(sent)) == layers[::-1]


def test_a_lenets_backward_pass_has_no_gradient_of_the_image() -> None:
    found = operators(converted(lenet()).train)
    assert (found["ConvWeightGrad"], found["ConvInputGrad"]) == (2, 1)
    assert (found["MaxPoolGrad"], found["SendBarrier"], found["ArgMax"]) == (2, 1, 1)


def test_the_programs_of_a_normalized_mlp() -> None:
    programs = converted(normalized_mlp())
    assert programs.train.role is Role.TRAIN
    assert programs.evaluate.role is Role.EVALUATE
    assert dict(programs.train.outputs) == dict(programs.evaluate.outputs) == {"loss": "loss", "accuracy": "accuracy"}
    assert [i.name for i in programs.train.inputs] == ["x", "label", LOSS_SCALE]
    assert [i.name for i in programs.evaluate.inputs] == ["x", "label"]
    assert programs.evaluate.constants == ()
    train, held_out = operators(programs.train), operators(programs.evaluate)
    assert (train["Dropout"], train["DropoutGrad"], train["BatchNormalizationGrad"]) == (1, 1, 1)
    assert (held_out["Dropout"], held_out["Identity"], held_out["Send"], held_out["SendBarrier"]) == (0, 0, 0, 0)
    assert held_out["Fetch"] == 6


def test_running_statistics_are_sent_as_soon_as_they_exist_and_averaged() -> None:
    programs = converted(normalized_mlp())
    assert {key.key: key.update for key in programs.keys} == {
        "w1": Update.RULE,
        "gamma": Update.RULE,
        "beta": Update.RULE,
        "mean": Update.MEAN,
        "var": Update.MEAN,
        "w2": Update.RULE,
    }
    names = [n.name for n in programs.train.nodes]
    place = names.index("n_normal")
    assert names[place + 1 : place + 3] == ["weft.send/mean", "weft.send/var"]
    normal = programs.train.nodes[place]
    assert [programs.train.nodes[place + 1 + i].inputs for i in range(2)] == [(name,) for name in normal.outputs[1:]]


def test_a_frozen_parameter_is_fetched_and_never_sent() -> None:
    frozen = replace(mlp(), parameters=tuple(replace(p, trainable=p.name != "w1") for p in mlp().parameters))
    programs = converted(frozen)
    assert {n.attributes["key"] for n in programs.train.nodes if n.op_type == "Send"} == {"b1", "w2", "b2"}
    assert "w1" in {n.attributes["key"] for n in programs.train.nodes if n.op_type == "Fetch"}
    assert programs.train.nodes[-1].attributes == {"keys": ("w1",)}
    assert programs.keys[0].update is Update.MEAN


def test_what_the_job_does_not_ask_for_is_not_computed() -> None:
    programs = convert(mlp(), loss="loss", metrics={})
    assert dict(programs.train.outputs) == {"loss": "loss"}
    assert operators(programs.train)["ArgMax"] == operators(programs.evaluate)["ArgMax"] == 0


def test_statistics_of_a_normalization_that_nothing_reads_are_not_sent() -> None:
    graph = normalized_mlp()
    stats = tuple(weight(name, 6, trainable=False) for name in ("m2", "v2", "s2"))
    dead = node("BatchNormalization", ["h", "s2", "s2", "m2", "v2"], ["dead"], training_mode=1)
    programs = converted(replace(graph, parameters=(*graph.parameters, *stats), nodes=(*graph.nodes, dead)))
    assert "n_dead" not in {n.name for n in programs.train.nodes}
    assert programs.train.nodes[-1].attributes == {"keys": ("m2", "v2", "s2")}


def test_the_order_in_which_nodes_are_written_does_not_matter_to_a_chain() -> None:
    assert converted(replace(mlp(), nodes=mlp().nodes[::-1])).keys == converted(mlp()).keys


def test_a_metric_may_be_called_loss_if_it_is_the_loss() -> None:
    assert dict(convert(mlp(), loss="loss", metrics={"loss": "loss"}).train.outputs) == {"loss": "loss"}
    with pytest.raises(GraphRefusedError, match="metric 'loss' is always the loss, 'loss'; it cannot be 'accuracy'"):
        convert(mlp(), loss="loss", metrics={"loss": "accuracy"})


@pytest.mark.parametrize(
    ("loss", "metrics", "error", "message"),
    [
        ("h1", {}, GraphRefusedError, "loss is 'h1', which is no output of the graph; it has 'loss', 'accuracy'"),
        ("loss", {"m": "ghost"}, GraphRefusedError, "metric 'm' is 'ghost', which is no output"),
        ("scores", {}, ShapeError, r"loss is 'scores', which is float32\[batch, 3\]; it must be a scalar"),
        ("loss", {"m": "scores"}, ShapeError, "metric 'm' is 'scores'"),
        ("accuracy", {}, GraphRefusedError, "'accuracy' has no path with a gradient to parameter 'w1'"),
    ],
)
def test_loss_and_metrics_are_scalar_outputs(
    loss: str, metrics: dict[str, str], error: type[GraphError], message: str
) -> None:
    outputs = mlp().outputs if loss == "h1" else (*mlp().outputs, "scores")
    with pytest.raises(error, match=message):
        convert(replace(mlp(), outputs=outputs), loss=loss, metrics=metrics)


def test_an_illegal_graph_is_not_converted() -> None:
    with pytest.raises(UnknownOperatorError):
        convert(line([node("Frobnicate", ["x"], ["loss"])]), loss="loss", metrics={})


def test_an_output_may_be_a_parameter() -> None:
    programs = convert(
        line(
            [node("ReduceMean", ["w"], ["loss"], keepdims=0)],
            [weight("w", 3), weight("k", trainable=False)],
            outputs=["loss", "k"],
        ),
        loss="loss",
        metrics={"k": "k"},
    )
    for program in (programs.train, programs.evaluate):
        assert {n.attributes["key"] for n in program.nodes if n.op_type == "Fetch"} == {"w", "k"}


def test_the_evaluation_program_computes_what_the_evaluator_computes() -> None:
    rng = np.random.default_rng(3)
    feeds = {"x": rng.normal(size=(5, 4)).astype(np.float32), "label": rng.integers(0, 3, 5)}
    weights = {p.name: rng.normal(size=p.type.static_shape).astype(np.float32) for p in mlp().parameters}
    program = converted(mlp()).evaluate
    computing = [n for n in program.nodes if n.op_type != "Fetch"]
    table = {**feeds, **weights}
    run_nodes(KernelContext(node=""), computing, table, keep=program.outputs.values())
    for name, array in evaluate(mlp(), feeds, parameters=weights).items():
        np.testing.assert_array_equal(table[name], array)


def test_a_blocked_parameter_is_named() -> None:
    """A class weight has no gradient in ONNX's loss."""
    graph = mlp()
    nodes = (
        *graph.nodes[:-5],
        node("SoftmaxCrossEntropyLoss", ["scores", "label", "class_weight"], ["loss"]),
        *accuracy("scores", "label", "accuracy"),
    )
    with pytest.raises(NoGradientError) as caught:
        converted(replace(graph, nodes=nodes, parameters=(*graph.parameters, weight("class_weight", 3))))
    assert caught.value.node == "n_loss"


def test_axes_that_users_gave_stay_constants_of_the_program() -> None:
    graph = line(
        [node("ReduceSum", ["w", "axes"], ["loss"], keepdims=0)],
        [weight("w", 3)],
        constants=[ints("axes", 0)],
        inputs={"x": floats(1)},
    )
    program = convert(graph, loss="loss", metrics={}).train
    assert "axes" in {c.name for c in program.constants}
    assert [i.name for i in program.inputs] == [LOSS_SCALE]
