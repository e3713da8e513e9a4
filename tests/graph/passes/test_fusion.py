"""Which nodes become one, and that a program computes the same bits with fusion and without."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from program_run import first_parameters, run_program
from sample_graphs import floats, lenet, line, mlp, node, normalized_mlp, scalar, weight
from weft_graph.convert import convert
from weft_graph.infer import infer
from weft_graph.ir import Graph, Node, Subgraph
from weft_graph.passes.draft import Draft, Options
from weft_graph.passes.fusion import MOST_INPUTS, MOST_NODES, fusion
from weft_graph.program import Programs, Role
from weft_graph.program_json import programs_from_json, programs_to_json


def fused(graph: Graph, options: Options | None = None) -> tuple[Node, ...]:
    draft = Draft(Role.TRAIN, graph, graph, infer(graph), {name: name for name in graph.outputs})
    return fusion(draft, options or Options()).graph.nodes


def shown(nodes: Sequence[Node]) -> list[str]:
    """`Exp` for a node by itself, `Exp Neg` for a Fused of the two."""
    bodies = [(each, each.attributes.get("body")) for each in nodes]
    return [
        " ".join(inner.op_type for inner in body.nodes) if isinstance(body, Subgraph) else each.op_type
        for each, body in bodies
    ]


CHAIN = (node("Exp", ["x"], ["a"]), node("Neg", ["a"], ["b"]), node("Tanh", ["b"], ["loss"]))


def test_a_chain_is_one_node_whose_inputs_are_explicit() -> None:
    (one,) = fused(line(CHAIN))
    assert (one.op_type, one.name, one.inputs, one.outputs) == ("Fused", "weft.fused/n_loss", ("x",), ("loss",))
    assert one.attributes["body"] == Subgraph(("x",), (), CHAIN, ("loss",))


def test_a_tree_and_a_value_that_is_read_twice_inside_are_one() -> None:
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("Neg", ["x"], ["b"]),
        node("Mul", ["a", "b"], ["c"]),
        node("Mul", ["c", "c"], ["loss"]),
    ]
    assert shown(fused(line(nodes))) == ["Exp Neg Mul Mul"]


@pytest.mark.parametrize(
    ("nodes", "outputs", "expected"),
    [
        # A value that is asked for is made as early as it can be.
        (CHAIN, ["loss", "a"], ["Exp", "Neg Tanh"]),
        # One that a node outside reads is written, and before that node runs.
        ((*CHAIN, node("ReduceMax", ["b"], ["m"])), ["loss", "m"], ["Exp Neg Tanh", "ReduceMax"]),
        ((*CHAIN[:2], node("ReduceMax", ["b"], ["m"]), CHAIN[2]), ["loss", "m"], ["Exp Neg", "ReduceMax", "Tanh"]),
        # What is between two pointwise nodes and is none stays between them.
        ((node("Exp", ["x"], ["a"]), node("Softmax", ["a"], ["b"]), node("Neg", ["b"], ["loss"])), ["loss"], None),
        # A smaller value is computed once, not once for each row.
        ((node("Exp", ["v"], ["a"]), node("Add", ["x", "a"], ["b"]), node("Neg", ["b"], ["loss"])), ["loss"], None),
        # Random numbers are keyed by a node's name, and a mask may be read by others.
        ((node("Exp", ["x"], ["a"]), node("Dropout", ["a"], ["b"]), node("Neg", ["b"], ["loss"])), ["loss"], None),
        # A number costs no memory traffic.
        ((node("Exp", ["n"], ["a"]), node("Neg", ["a"], ["loss"])), ["loss"], None),
    ],
)
def test_where_a_group_ends(nodes: Sequence[Node], outputs: Sequence[str], expected: list[str] | None) -> None:
    graph = line(nodes, outputs=outputs, inputs={"x": floats("batch", 4), "v": floats(4), "n": floats()})
    if expected is None:
        expected = [each.op_type for each in nodes]
        if expected[1:] == ["Add", "Neg"]:
            expected = ["Exp", "Add Neg"]
    assert shown(fused(graph)) == expected


def test_values_that_others_read_are_outputs_behind_the_last_nodes() -> None:
    after = fused(
        line([*CHAIN, node("ReduceMax", ["b"], ["m"]), node("Softmax", ["a"], ["s"])], outputs=["loss", "m", "s"])
    )
    assert shown(after) == ["Exp Neg Tanh", "ReduceMax", "Softmax"]
    body = after[0].attributes["body"]
    assert isinstance(body, Subgraph)
    assert after[0].outputs == body.outputs == ("loss", "a", "b")


def test_a_node_that_would_close_a_cycle_stays_outside() -> None:
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("Softmax", ["a"], ["s"]),
        node("Neg", ["s"], ["b"]),
        node("Add", ["a", "b"], ["loss"]),
    ]
    assert shown(fused(line(nodes))) == ["Exp", "Softmax", "Neg Add"]


def test_two_values_are_not_held_for_the_sake_of_one() -> None:
    """c is made early of a and b, which nothing else reads, and is read late: fused, a and b would wait for Sub."""
    early = [node("Softmax", ["x"], ["a"]), node("LogSoftmax", ["x"], ["b"]), node("Mul", ["a", "b"], ["c"])]
    late = [node("Softmax", ["x"], ["d"]), node("CumSum", ["d", "one"], ["e"]), node("Sub", ["c", "e"], ["loss"])]
    one = [scalar("one", 1, "int64")]
    assert shown(fused(line([*early, *late], constants=one)))[-1] == "Sub"
    assert shown(fused(line([*early, late[2]], inputs={"x": floats(3, 3), "e": floats(3, 3)})))[-1] == "Mul Sub"
    unary = [early[0], node("Exp", ["a"], ["c"])]
    assert shown(fused(line([*unary, *late], constants=one)))[-1] == "Exp Sub"


def test_places_are_not_joined() -> None:
    nodes = [replace(each, group=group) for each, group in zip(CHAIN, ("cpu", "cuda:0", "cuda:0"), strict=True)]
    after = fused(line(nodes))
    assert shown(after) == ["Exp", "Neg Tanh"]
    assert after[1].group == "cuda:0"


def test_a_group_has_bounds() -> None:
    names = ["x", *(f"v{k}" for k in range(2 * MOST_NODES)), "loss"]
    long = [node("Neg", [a], [b]) for a, b in itertools.pairwise(names)]
    sizes = [len(each.split()) for each in shown(fused(line(long)))]
    assert (sum(sizes), max(sizes)) == (len(long), MOST_NODES)
    inputs = {f"i{k}": floats(5) for k in range(MOST_INPUTS + 4)}
    sums = ["i0", *(f"s{k}" for k in range(1, len(inputs) - 1)), "loss"]
    wide = [node("Add", [a, f"i{k}"], [b]) for k, (a, b) in enumerate(itertools.pairwise(sums), 1)]
    after = fused(line(wide, inputs=inputs))
    assert max(len(each.inputs) for each in after) == MOST_INPUTS


def test_the_switch_is_off() -> None:
    assert fused(line(CHAIN), Options(fusion=False)) == CHAIN


def gated_mlp() -> Graph:
    """Two dense layers with a Swish gate, a Gelu and a scale between them, as transformers have."""
    return line(
        [
            node("MatMul", ["x", "w1"], ["a"]),
            node("Add", ["a", "b1"], ["b"]),
            node("Sigmoid", ["b"], ["s"]),
            node("Mul", ["b", "s"], ["gate"]),
            node("MatMul", ["x", "w2"], ["c"]),
            node("Mul", ["gate", "c"], ["d"]),
            node("Gelu", ["d"], ["g"]),
            node("LayerNormalization", ["g", "scale"], ["n"]),
            node("MatMul", ["n", "w3"], ["e"]),
            node("Mul", ["e", "e"], ["q"]),
            node("ReduceMean", ["q"], ["loss"], keepdims=0),
        ],
        [weight("w1", 4, 8), weight("b1", 8), weight("w2", 4, 8), weight("scale", 8), weight("w3", 8, 2)],
        inputs={"x": floats("batch", 4)},
    )


def programs(graph: Graph, fuses: bool) -> Programs:
    metrics = {name: name for name in graph.outputs}
    return convert(graph, loss="loss", metrics=metrics, options=Options(fusion=fuses))


@pytest.mark.parametrize("graph", [mlp(), normalized_mlp(), lenet(), gated_mlp()], ids=lambda graph: graph.name)
def test_a_program_has_the_bits_of_the_same_without_fusion(graph: Graph) -> None:
    draw = np.random.default_rng(4)
    feeds = {
        declared.name: draw.integers(0, 3, 6)
        if declared.type.dtype.value == "int64"
        else draw.normal(size=(6, *declared.type.shape[1:])).astype(np.float32)
        for declared in graph.inputs
    }
    plain, fused_ = programs(graph, False), programs(graph, True)
    parameters = first_parameters(plain)
    assert fused_.keys == plain.keys
    for before, after in ((plain.train, fused_.train), (plain.evaluate, fused_.evaluate)):
        expected = run_program(before, feeds, parameters, 6)
        found = run_program(after, feeds, parameters, 6)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_the_backward_pass_of_a_gated_layer_gets_shorter() -> None:
    plain, fused_ = programs(gated_mlp(), False).train, programs(gated_mlp(), True).train
    assert len(fused_.nodes) <= len(plain.nodes) - 9
    fused_nodes = [each for each in shown(fused_.nodes) if " " in each]
    assert fused_nodes == [
        "Add Sigmoid Mul Mul Gelu",
        "Mul Add",
        "GeluGrad Mul",
        "Mul Mul SigmoidGrad Add",
    ]


def test_fused_programs_travel_as_json() -> None:
    made = programs(gated_mlp(), True)
    assert programs_from_json(programs_to_json(made)) == made
