"""Nodes at their groups' places, the rest near them, and copies where a value is read elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from program_run import first_parameters, run_program
from sample_graphs import line, mlp, node, tensor, weight
from weft_graph.convert import convert
from weft_graph.errors import GraphRefusedError
from weft_graph.ir import Graph, Input
from weft_graph.passes.draft import Options
from weft_graph.passes.places import Place, place_of
from weft_graph.program import Program, Programs
from weft_graph.types import DType

TWO = {"first": "cuda:0", "second": "cuda:1"}


def grouped(graph: Graph, groups: Mapping[str, str]) -> Graph:
    """The graph with the named nodes in groups."""
    return replace(graph, nodes=tuple(replace(each, group=groups.get(each.name, "")) for each in graph.nodes))


def two_devices() -> Graph:
    """Its first layer on one device and its second on another; Add, Tanh and the loss follow what they read."""
    return grouped(mlp(), {"n_xw1": "first", "n_xw2": "second"})


def converted(graph: Graph, placement: Mapping[str, str]) -> Programs:
    return convert(
        graph, loss="loss", metrics={"accuracy": "accuracy"}, options=Options(placement=placement, fusion=False)
    )


def places(program: Program) -> dict[str, str]:
    return {each.name: each.group for each in program.nodes}


def copies(program: Program) -> list[tuple[str, str, str]]:
    return [
        (each.inputs[0], str(each.attributes["source"]), str(each.attributes["target"]))
        for each in program.nodes
        if each.op_type in {"Copy", "Transfer"}
    ]


def test_nodes_without_a_group_follow_what_they_read_and_backward_nodes_their_forward_node() -> None:
    train = converted(two_devices(), TWO).train
    found = places(train)
    assert {found[name] for name in ("n_xw1", "n_h1", "n_a1")} == {"cuda:0"}
    assert {found[name] for name in ("n_xw2", "n_scores", "n_loss", "n_guess", "n_accuracy")} == {"cuda:1"}
    for name, place in found.items():
        if name.startswith("weft.grad/n_"):
            assert place == found[name.split("/")[1]], name


def test_an_activation_is_copied_forward_and_its_gradient_back() -> None:
    train = converted(two_devices(), TWO).train
    a1, gradient = copies(train)
    assert a1 == ("a1", "cuda:0", "cuda:1")
    assert gradient[1:] == ("cuda:1", "cuda:0")
    assert train.types[gradient[0]] == train.types["a1"]
    assert [each.attributes["priority"] for each in train.nodes if each.op_type == "Copy"] == [0, 1]


def test_a_copy_stands_directly_behind_what_makes_its_value_and_serves_every_reader() -> None:
    nodes = [
        replace(node("MatMul", ["x", "w"], ["h"]), group="first"),
        replace(node("Tanh", ["h"], ["a"]), group="first"),
        replace(node("Exp", ["h"], ["b"]), group="second"),
        replace(node("Neg", ["h"], ["c"]), group="second"),
        node("Add", ["b", "c"], ["d"]),
        replace(node("Add", ["d", "a"], ["e"]), group="first"),
        node("ReduceMean", ["e"], ["loss"], keepdims=0),
    ]
    program = convert(
        line(nodes, [weight("w", 4, 3)]), loss="loss", metrics={}, options=Options(placement=TWO, fusion=False)
    ).evaluate
    assert [each.name for each in program.nodes] == [
        *("weft.fetch/w", "n_h", "weft.copy/h@cuda:1", "n_a", "n_b", "n_c", "n_d", "weft.copy/d@cuda:0", "n_e"),
        "n_loss",
    ]
    assert [each.inputs for each in program.nodes if each.group == "cuda:1" and each.op_type in {"Exp", "Neg"}] == [
        ("weft.copy/h@cuda:1",)
    ] * 2


def test_what_several_places_read_is_brought_to_the_first_and_copied_to_the_others() -> None:
    """A tied weight, an input that both read, and a constant, which is everywhere."""
    nodes = [
        replace(node("MatMul", ["x", "w"], ["h"]), group="first"),
        replace(node("MatMul", ["x", "w"], ["i"]), group="second"),
        replace(node("Add", ["i", "h"], ["j"]), group="second"),
        node("ReduceMean", ["j"], ["loss"], keepdims=0),
    ]
    graph = line(nodes, [weight("w", 4, 3)])
    program = convert(graph, loss="loss", metrics={}, options=Options(placement=TWO, fusion=False)).train
    assert copies(program)[:3] == [("x", "cuda:0", "cuda:1"), ("w", "cuda:0", "cuda:1"), ("h", "cuda:0", "cuda:1")]
    order = [each.name for each in program.nodes]
    assert order[:4] == ["weft.copy/x@cuda:1", "weft.fetch/w", "weft.copy/w@cuda:1", "n_h"]
    assert sum(each.op_type == "Fetch" for each in program.nodes) == sum(
        each.op_type == "Send" for each in program.nodes
    )


def test_stages_are_joined_by_transfers_and_devices_of_one_stage_by_copies() -> None:
    train = converted(two_devices(), {"first": "stage:0", "second": "stage:1/cuda:0"}).train
    kinds = [each.op_type for each in train.nodes if each.op_type in {"Copy", "Transfer"}]
    assert kinds == ["Transfer", "Transfer"]
    same = converted(two_devices(), {"first": "stage:1/cpu", "second": "stage:1/cuda:0"}).train
    assert {each.op_type for each in same.nodes if each.op_type in {"Copy", "Transfer"}} == {"Copy"}


def test_nothing_is_inserted_where_all_is_on_one_place_and_groups_are_gone_without_placement() -> None:
    plain = converted(mlp(), {})
    assert converted(two_devices(), {}) == plain
    one = converted(two_devices(), {"first": "cpu", "second": "cpu"})
    assert copies(one.train) == copies(one.evaluate) == []
    assert [replace(each, group="") for each in one.train.nodes] == list(plain.train.nodes)


def test_ids_run_where_their_table_is_read() -> None:
    ids = Input("ids", tensor(DType.INT64, "batch"))
    nodes = (
        node("Add", ["ids", "ids"], ["twice"]),
        replace(node("Gather", ["T", "twice"], ["rows"]), group="second"),
        node("ReduceMean", ["rows"], ["loss"], keepdims=0),
    )
    graph = Graph("table", (ids,), (weight("T", 9, 2),), nodes, ("loss",))
    program = convert(graph, loss="loss", metrics={}, options=Options(placement={"second": "cuda:1"})).train
    assert set(places(program).values()) <= {"cuda:1", ""}
    assert places(program)["weft.unique_rows/T"] == "cuda:1"
    assert copies(program) == []


def test_a_placed_program_has_the_bits_of_the_unplaced_one() -> None:
    draw = np.random.default_rng(2)
    feeds = {"x": draw.normal(size=(6, 4)).astype(np.float32), "label": draw.integers(0, 3, 6)}
    for fusion in (False, True):
        found = []
        for placement in ({}, {"first": "cpu", "second": "cuda:0"}):
            programs = convert(
                two_devices(),
                loss="loss",
                metrics={"accuracy": "accuracy"},
                options=Options(placement=placement, fusion=fusion),
            )
            assert bool(copies(programs.train)) == bool(placement)
            parameters = first_parameters(programs)
            found.append(
                {
                    **run_program(programs.train, feeds, parameters, 6),
                    **{f"held/{k}": v for k, v in run_program(programs.evaluate, feeds, parameters, 6).items()},
                }
            )
        plain, placed = found
        assert plain.keys() == placed.keys()
        for name, array in plain.items():
            np.testing.assert_array_equal(placed[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ({"first": "cuda:0"}, r"node 'n_xw2' \(MatMul\) is in group 'second', and placement has no place for it"),
        ({**TWO, "third": "cpu"}, "no node is in group 'third'"),
        ({**TWO, "second": "gpu1"}, "'gpu1' is no place; places are cpu, cuda:0"),
        ({**TWO, "second": "cuda:0\n"}, "is no place"),
        ({**TWO, "second": "stage:1/tpu"}, "is no place"),
        ({**TWO, "second": ""}, "is no place"),
    ],
)
def test_what_cannot_be_placed_is_refused(placement: dict[str, str], message: str) -> None:
    with pytest.raises(GraphRefusedError, match=message):
        converted(two_devices(), placement)


def test_places_are_read() -> None:
    assert place_of("stage:3/cuda:1") == Place(3, "cuda:1")
    assert (str(place_of("cuda:12")), str(place_of("stage:2")), str(place_of("stage:0/cpu"))) == (
        *("cuda:12", "stage:2", "cpu"),
    )
