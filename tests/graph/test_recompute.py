"""Values are computed again where that holds less, by copies of the nodes that made them."""

from __future__ import annotations

import pytest

from residual_nets import SMALL, resnet_graph
from sample_graphs import floats, line, node, scalar, weight
from weft_graph.convert import convert
from weft_graph.ir import Graph, Node
from weft_graph.memory import program_memory
from weft_graph.names import AGAIN, drawn_as
from weft_graph.passes.draft import Options, Recompute
from weft_graph.passes.recompute import is_repeatable
from weft_graph.program import Program
from weft_graph.program_text.program import programs_text

DIMS = {"batch": 64}


def train(graph: Graph, mode: Recompute) -> Program:
    options = Options(recompute=mode, dims=DIMS, fusion=False)
    return convert(graph, loss=graph.outputs[0], metrics={}, options=options).train


def again(program: Program) -> list[Node]:
    return [node for node in program.nodes if node.name.startswith(AGAIN)]


def deep(layers: int = 8, *, dropout: bool = False) -> Graph:
    """Layers of a product and Gelu, and perhaps Dropout; the mean at the end."""
    nodes, parameters, value = [], [], "x"
    for layer in range(layers):
        parameters.append(weight(f"w{layer}", 64, 64))
        nodes.append(node("MatMul", [value, f"w{layer}"], [f"m{layer}"]))
        nodes.append(node("Gelu", [f"m{layer}"], [f"a{layer}"]))
        value = f"a{layer}"
        if dropout:
            nodes.append(node("Dropout", [value, "ratio", "training"], [f"d{layer}"]))
            value = f"d{layer}"
    nodes.append(node("ReduceMean", [value], ["loss"], keepdims=0))
    constants = [scalar("ratio", 0.5, "float32"), scalar("training", True, "bool")] if dropout else []
    return line(nodes, parameters, inputs={"x": floats("batch", 64)}, constants=constants)


def test_cheap_functions_are_computed_again_and_products_are_not() -> None:
    nodes = again(train(deep(), Recompute.CHEAP))
    assert nodes
    assert {node.op_type for node in nodes} == {"Gelu"}


def test_a_copy_stands_right_before_what_reads_it_first() -> None:
    program = train(deep(), Recompute.CHEAP)
    for place, each in enumerate(program.nodes):
        if each.name.startswith(AGAIN):
            behind = next(node for node in program.nodes[place:] if not node.name.startswith(AGAIN))
            between = program.nodes[place : program.nodes.index(behind)]
            read = {name for node in (*between, behind) for name in node.inputs}
            assert set(filter(None, each.outputs)) & read


def test_segments_compute_products_again_and_hold_less_than_cheap_ones() -> None:
    graph = deep(24)
    held = [program_memory(train(graph, mode), DIMS).arena for mode in Recompute]
    assert held == sorted(held, reverse=True)
    assert len(set(held)) == 3
    assert "MatMul" in {node.op_type for node in again(train(graph, Recompute.SEGMENTS))}


def test_what_is_drawn_is_drawn_again() -> None:
    nodes = [node for node in again(train(deep(dropout=True), Recompute.CHEAP)) if node.op_type == "Dropout"]
    assert nodes
    for each in nodes:
        assert drawn_as(each.name) == each.name.removeprefix(AGAIN)


def test_outputs_that_nobody_reads_again_are_left_out() -> None:
    graph = resnet_graph(SMALL)
    program = train(graph, Recompute.CHEAP)
    read = {name for node in program.nodes for name in node.inputs}
    copies = again(program)
    assert any(node.op_type == "BatchNormalization" for node in copies)
    assert all(name in read for node in copies for name in node.outputs if name)


def test_nothing_is_computed_again_unless_asked_for_and_never_in_an_evaluation() -> None:
    assert not again(train(deep(), Recompute.OFF))
    for mode in Recompute:
        programs = convert(deep(), loss="loss", metrics={}, options=Options(recompute=mode, dims=DIMS))
        assert not again(programs.evaluate)


def test_a_chain_of_sums_is_held_in_places() -> None:
    """Each value is made from the one before: to compute all of them again at once would hold all of them again."""
    nodes, value = [], "x"
    for layer in range(24):
        nodes += [node("MatMul", [value, "w"], [f"m{layer}"]), node("Add", [value, f"m{layer}"], [f"s{layer}"])]
        nodes.append(node("Gelu", [f"s{layer}"], [f"g{layer}"]))
        value = f"g{layer}"
    nodes.append(node("ReduceMean", [value], ["loss"], keepdims=0))
    graph = line(nodes, [weight("w", 64, 64)], inputs={"x": floats("batch", 64)})
    before, after = (program_memory(train(graph, mode), DIMS) for mode in (Recompute.OFF, Recompute.CHEAP))
    assert after.arena < 0.8 * before.arena


def test_the_text_counts_what_is_computed_again_as_backward_wherever_it_tells_of_it() -> None:
    for mode in (Recompute.CHEAP, Recompute.SEGMENTS):
        programs = convert(deep(), loss="loss", metrics={}, options=Options(recompute=mode, dims=DIMS))
        text = programs_text(programs)
        lines = text[text.index("training step:") : text.index("evaluation step:")].splitlines()
        at = lines.index("  backward")
        forward, backward = (sum(line[:6].strip().isdigit() for line in part) for part in (lines[:at], lines[at:]))
        assert backward > sum(each.name.startswith(AGAIN) for each in programs.train.nodes) > 0
        assert text.count(f"{forward} forward and {backward} backward") == 2


def test_in_a_net_of_many_equal_layers_no_value_is_too_small() -> None:
    """Over 1,024 values are held, each of which is less than a thousandth of them all."""
    nodes, value = [], "x"
    for layer in range(540):
        nodes += [node("MatMul", [value, "w"], [f"m{layer}"]), node("Gelu", [f"m{layer}"], [f"a{layer}"])]
        value = f"a{layer}"
    nodes.append(node("ReduceMean", [value], ["loss"], keepdims=0))
    graph = line(nodes, [weight("w", 64, 64)], inputs={"x": floats("batch", 64)})
    assert len(again(train(graph, Recompute.CHEAP))) > 250


def test_looking_for_what_can_be_made_again_takes_time_for_each_node_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    monkeypatch.setattr(
        "weft_graph.passes.recompute.is_repeatable", lambda node: looks.append(node.name) or is_repeatable(node)
    )
    counts = []
    for layers in (30, 120):
        looks.clear()
        train(deep(layers), Recompute.SEGMENTS)
        counts.append(len(looks))
    assert counts[1] < 6 * counts[0]
