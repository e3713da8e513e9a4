"""How much memory programs take, against sums done by hand."""

from __future__ import annotations

import pytest

from sample_graphs import floats, lenet, line, node, weight
from weft_graph.convert import convert
from weft_graph.errors import GraphRefusedError
from weft_graph.infer import infer
from weft_graph.ir import Graph
from weft_graph.memory import ProgramMemory, parameter_bytes, program_memory
from weft_graph.program import Program, Role
from weft_graph.topological import topological_order


def program_of(graph: Graph) -> Program:
    """The graph's nodes and no others."""
    outputs = {name: name for name in graph.outputs}
    return Program(Role.EVALUATE, graph.inputs, graph.constants, topological_order(graph.nodes), outputs, infer(graph))


def test_parameters_take_their_elements() -> None:
    """150+6+2400+16+48000+120+1200+10 floats of 4 bytes."""
    assert parameter_bytes(convert(lenet(), loss="loss", metrics={}).keys) == 51902 * 4


def test_a_chain_holds_an_input_and_two_neighbours() -> None:
    """x (4 floats a row) stays; a and b lie on one place; c is the output."""
    chain = [node("Relu", ["x"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["c"])]
    program = program_of(line(chain, outputs=["c"]))
    memory = program_memory(program, {"batch": 10})
    assert memory == ProgramMemory(given=160, intermediates=3 * 160, live=160, arena=192, kept=160)
    assert (memory.total, memory.peak) == (4 * 160, 160 + 192 + 160)


def test_a_value_is_held_until_its_last_reader() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Relu", ["b"], ["c"]),
        node("Add", ["a", "c"], ["d"]),
    ]
    program = program_of(line(nodes, outputs=["d"]))
    assert program_memory(program, {"batch": 4}) == ProgramMemory(
        64, intermediates=4 * 64, live=128, arena=128, kept=64
    )


def test_training_takes_more_than_evaluation_and_grows_with_the_batch() -> None:
    programs = convert(lenet(), loss="loss", metrics={})
    small, large = (program_memory(programs.train, {"batch": batch}) for batch in (1, 64))
    held_out = program_memory(programs.evaluate, {"batch": 64})
    assert small.peak <= small.total < large.total
    assert held_out.total < large.total
    assert held_out.peak < large.peak < large.total


def test_numbers_far_beyond_any_machine_are_exact() -> None:
    nodes = [node("Add", ["w", "w"], ["y"]), node("ReduceMean", ["y"], ["loss"], keepdims=0)]
    programs = convert(line(nodes, [weight("w", 1 << 20, 1 << 20)]), loss="loss", metrics={})
    assert parameter_bytes(programs.keys) == 4 << 40
    memory = program_memory(programs.evaluate, {})
    assert (memory.total, memory.arena, memory.kept) == ((8 << 40) + 4, 4 << 40, 4)


def test_a_dimension_that_nothing_fills_is_named() -> None:
    program = program_of(line([node("Relu", ["x"], ["y"])], inputs={"x": floats("batch", "tokens")}, outputs=["y"]))
    with pytest.raises(GraphRefusedError, match=r"value 'x' is float32\[4, tokens\]; nothing fills tokens"):
        program_memory(program, {"batch": 4})
