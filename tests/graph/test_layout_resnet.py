"""ResNet-50 in training at batch 32: how much of its intermediates is held, with and without computing them again."""

from __future__ import annotations

import sys
from functools import cache
from types import FrameType

from residual_nets import RESNET_50, ResNet, resnet_graph
from weft_graph.convert import convert
from weft_graph.cost import program_operations
from weft_graph.memory import ProgramMemory, program_memory
from weft_graph.passes.draft import Options, Recompute

DIMS = {"batch": 32}


@cache
def planned(mode: Recompute, *, fusion: bool = True) -> tuple[ProgramMemory, int]:
    """(memory, operations) of the train program."""
    graph = resnet_graph(RESNET_50)
    options = Options(recompute=mode, fusion=fusion, dims=DIMS)
    program = convert(graph, loss=graph.outputs[0], metrics={}, options=options).train
    return program_memory(program, DIMS), program_operations(program, DIMS)


def activations(memory: ProgramMemory) -> int:
    """Bytes of activations and gradients at their peak, with every gradient held until the step's end."""
    return memory.arena + memory.kept


def test_at_most_55_percent_of_all_intermediates_are_held_and_the_arena_wastes_little() -> None:
    whole = planned(Recompute.OFF, fusion=False)[0].intermediates
    memory = planned(Recompute.OFF)[0]
    assert whole > 9_000_000_000
    assert activations(memory) <= 0.55 * whole
    assert memory.arena <= 1.1 * memory.live


def test_computing_again_saves_a_third_and_more_for_less_than_a_third_of_the_operations() -> None:
    before, operations = planned(Recompute.OFF)
    for mode, more in ((Recompute.CHEAP, 0.02), (Recompute.SEGMENTS, 0.35)):
        after, again = planned(mode)
        assert activations(after) <= 0.65 * activations(before)
        assert after.arena <= 1.1 * after.live
        assert operations < again <= (1 + more) * operations


def test_operations_are_those_that_are_known_of_the_net() -> None:
    """4.1e9 products and sums forward and an image; twice that backward, less the images' own gradient."""
    assert 0.95 < planned(Recompute.OFF)[1] / (3 * 2 * 4.1e9 * 32) < 1.02


def calls(blocks: int) -> tuple[int, int]:
    """(nodes of the train program, Python functions that were called to plan it) of a small net."""
    graph = resnet_graph(ResNet(blocks=(blocks,) * 4, width=4, pixels=32, classes=5))
    options, count = Options(recompute=Recompute.SEGMENTS, dims={"batch": 4}), 0

    def counted(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        program = convert(graph, loss=graph.outputs[0], metrics={}, options=options).train
        program_memory(program, {"batch": 4})
    finally:
        sys.setprofile(before)
    return len(program.nodes), count


def test_planning_grows_as_the_net_does() -> None:
    (few, small), (many, large) = calls(1), calls(2)
    assert large / small < 1.3 * many / few
