"""A layout: which values share memory, and that nobody's value is overwritten before it is read."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from residual_nets import SMALL, resnet_graph
from sample_graphs import floats, ints, lenet, line, mlp, node, normalized_mlp
from weft_graph.convert import convert
from weft_graph.infer import infer, infer_program
from weft_graph.ir import Graph
from weft_graph.layout.live_ranges import read_by
from weft_graph.layout.plan import Layout, layout
from weft_graph.passes.draft import Options, Recompute
from weft_graph.program import Program, Role
from weft_graph.topological import topological_order

DIMS = {"batch": 4}
X_AND_W = {"x": floats("batch", 4), "w": floats(4, 4)}


def laid_out(graph: Graph) -> Layout:
    """The layout of the graph's nodes and no others."""
    outputs = {name: name for name in graph.outputs}
    nodes = topological_order(graph.nodes)
    program = Program(Role.EVALUATE, graph.inputs, graph.constants, nodes, outputs, infer(graph))
    return layout(program, infer_program(program, DIMS))


def test_a_chain_of_pointwise_nodes_lies_on_one_place() -> None:
    names = ["x", "a", "b", "c", "y"]
    found = laid_out(line([node("Relu", [a], [b]) for a, b in itertools.pairwise(names)], outputs=["y"]))
    assert set(found.offsets) == {"a", "b", "c"}
    assert found.arena_bytes == found.live_bytes == 4 * 4 * 4
    assert found.kept_bytes == 4 * 4 * 4, "the output is its taker's"
    assert found.intermediate_bytes == 4 * 4 * 4 * 4


def test_a_value_that_is_read_later_is_not_overwritten() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Exp", ["a"], ["b"]), node("Add", ["a", "b"], ["y"])]
    found = laid_out(line(nodes, outputs=["y"]))
    assert found.offsets["a"] != found.offsets["b"]


def test_what_reads_other_elements_takes_no_place() -> None:
    """MatMul would read what it has overwritten."""
    nodes = [node("Relu", ["x"], ["a"]), node("MatMul", ["a", "w"], ["b"]), node("Relu", ["b"], ["y"])]
    found = laid_out(line(nodes, inputs=X_AND_W, outputs=["y"]))
    assert found.offsets["a"] != found.offsets["b"]


def test_a_view_has_no_memory_and_keeps_what_it_views() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Transpose", ["a"], ["t"]),
        node("Exp", ["x"], ["b"]),
        node("Exp", ["b"], ["c"]),
        node("MatMul", ["c", "t"], ["y"]),
    ]
    found = laid_out(line(nodes, outputs=["y"]))
    assert found.views == {"t": "a"}
    assert "t" not in found.offsets
    assert found.offsets["c"] == found.offsets["b"] != found.offsets["a"]


def test_a_reshaped_transpose_is_a_copy_and_a_reshaped_product_is_not() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Transpose", ["a"], ["t"]),
        node("Reshape", ["t", "flat"], ["copied"]),
        node("Reshape", ["a", "flat"], ["viewed"]),
        node("Add", ["copied", "viewed"], ["y"]),
    ]
    found = laid_out(line(nodes, inputs={"x": floats(4, 4)}, constants=[ints("flat", 16)], outputs=["y"]))
    assert found.views == {"t": "a", "viewed": "a"}
    assert "copied" in found.offsets


def test_a_view_of_what_was_given_is_no_ones_place() -> None:
    """Nothing may be written where the input lies."""
    nodes = [node("Transpose", ["x"], ["t"]), node("Relu", ["t"], ["a"]), node("Relu", ["a"], ["y"])]
    found = laid_out(line(nodes, outputs=["y"]))
    assert found.views == {"t": "x"}
    assert set(found.offsets) == {"a"}


def test_what_the_store_is_handed_lies_outside() -> None:
    program = convert(mlp(), loss="loss", metrics={}).train
    found = layout(program, infer_program(program, DIMS))
    sent = {name for each in program.nodes if each.op_type == "Send" for name in each.inputs}
    assert sent
    assert not sent & found.offsets.keys()
    assert found.kept_bytes >= sum(infer_program(program, DIMS)[name].nbytes for name in sent)


def test_a_shape_alone_holds_no_memory() -> None:
    """`a` is read for its shape behind `b`, which may lie where it was."""
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("MatMul", ["a", "w"], ["m"]),
        node("MatMul", ["m", "w"], ["b"]),
        node("Shape", ["a"], ["shape"]),
        node("Expand", ["b", "shape"], ["wide"]),
        node("Relu", ["wide"], ["y"]),
    ]
    found = laid_out(line(nodes, inputs=X_AND_W, outputs=["y"]))
    assert found.offsets["b"] == found.offsets["a"]


def test_what_only_values_decide_lies_outside() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("NonZero", ["a"], ["places"]), node("Relu", ["a"], ["y"])]
    found = laid_out(line(nodes, outputs=["y", "places"]))
    assert "places" not in found.offsets
    assert "places" not in found.strides


GRAPHS: dict[str, Callable[[], Graph]] = {
    "mlp": mlp,
    "normalized": normalized_mlp,
    "lenet": lenet,
    "resnet": lambda: resnet_graph(SMALL),
}


@pytest.mark.parametrize("mode", list(Recompute))
@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("name", GRAPHS)
def test_every_value_is_there_when_it_is_read(name: str, fusion: bool, mode: Recompute) -> None:
    """The arena as a list of bytes: each holds the name of the memory's owner that was written last."""
    graph = GRAPHS[name]()
    options = Options(fusion=fusion, recompute=mode, dims=DIMS)
    programs = convert(graph, loss=graph.outputs[0], metrics={}, options=options)
    for program in (programs.train, programs.evaluate):
        types = infer_program(program, DIMS)
        found = layout(program, types)
        memory = [""] * found.arena_bytes
        owners: dict[str, str] = {}
        for each in program.nodes:
            for value in read_by(each):
                owner = owners.get(value, "")
                if owner in found.offsets:
                    start = found.offsets[owner]
                    assert set(memory[start : start + types[owner].nbytes]) <= {owner}, f"{each.name} reads {value}"
            for value in filter(None, each.outputs):
                owners[value] = owners.get(found.views[value], "") if value in found.views else value
                if value in found.offsets:
                    start = found.offsets[value]
                    stop = start + types[value].nbytes
                    memory[start:stop] = [value] * (stop - start)
        assert found.live_bytes <= found.arena_bytes <= 1.1 * found.live_bytes + 64 * len(found.offsets)


def test_a_dimension_that_is_open_leaves_values_outside() -> None:
    found = laid_out(line([node("Relu", ["x"], ["y"])], inputs={"x": floats("batch", 4)}, outputs=["y"]))
    assert found.arena_bytes == 0
