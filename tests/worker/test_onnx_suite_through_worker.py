"""ONNX's own backend suite on the worker's way: the converter's passes, bind, memory layout, arena and engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
import pytest

from onnx_suite import Case, cases, failures, left_out
from weft_graph.infer import infer
from weft_graph.ir import Graph, Node
from weft_graph.passes.draft import Draft, Options
from weft_graph.passes.pipeline import ROLES, run_passes
from weft_graph.program import Program, Role
from weft_graph.topological import topological_order
from weft_graph.weft_domain import FUSED
from weft_kernels.kernel import Array
from weft_kernels.onnx_backend import Backend, Prepared
from weft_worker.bind import bind
from weft_worker.engine.engine import Engine
from weft_worker.engine.threaded import ThreadedEngine
from weft_worker.step.pusher import StepPusher
from weft_worker.step.run import COMPUTE, IO, Runtime
from weft_worker.step.values import StepContext

pytestmark = pytest.mark.timeout(400)

WAIT_S = 60.0
FEW = 3
NETS = {"test_resnet50_cpu", "test_inception_v1_cpu", "test_squeezenet_cpu", "test_shufflenet_cpu"}
"""Of the suite's whole nets: with branches, sums, concatenations and groups. The kernels' tests run the larger ones."""
PASSES = [each for each in ROLES[Role.EVALUATE] if each.name != "inference"]
"""Those of an evaluation, less the one that turns training off: the suite has nodes that train."""


@dataclass(slots=True)
class Suite:
    """The suite once it has run: why tests failed, how many nodes of each operator the programs had, and how many bytes
    their arenas took in all."""

    nodes: Counter[str] = field(default_factory=Counter)
    arena_bytes: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class OnWorker(Prepared):
    """A model that runs as an evaluation does."""

    def _computed(self, graph: Graph, arrays: dict[str, Array]) -> Mapping[str, Array]:
        return _stepped(_program(graph), arrays)


class WorkerBackend(Backend):
    """Runs models through the converter's passes and a worker's engine."""

    engine: Engine
    suite: Suite

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_kwargs: Any) -> OnWorker:
        return OnWorker(model)


def _program(graph: Graph) -> Program:
    ordered = _with_outputs_made(replace(graph, nodes=topological_order(graph.nodes)))
    draft = Draft(Role.EVALUATE, ordered, ordered, infer(ordered), {name: f"{name}.out" for name in graph.outputs})
    return run_passes(PASSES, draft, Options()).program()


def _with_outputs_made(graph: Graph) -> Graph:
    """A program's outputs are values of its own: an input or a constant that is one is passed through."""
    passed = tuple(Node("Identity", f"out of {name}", (name,), (f"{name}.out",)) for name in graph.outputs)
    return replace(graph, nodes=(*graph.nodes, *passed), outputs=tuple(f"{name}.out" for name in graph.outputs))


def _stepped(program: Program, feeds: dict[str, Array]) -> dict[str, Array]:
    plan = bind(program, {})
    WorkerBackend.suite.nodes.update(bound.node.op_type for bound in plan.nodes)
    WorkerBackend.suite.arena_bytes += plan.placement.layout.arena_bytes
    engine = WorkerBackend.engine
    pusher = StepPusher(Runtime(engine, None))  # type: ignore[arg-type]  # these programs fetch and send nothing
    read = {name: feeds[name] for name in plan.inputs}
    step = pusher.push(plan, StepContext(0, 0, 0, "case"), read)
    engine.wait(step.outputs, WAIT_S)
    outputs = {name: step.table.get(place).copy() for name, place in plan.outputs.items()}
    step.table.release(plan.outputs.values())
    return outputs


def _few_of_each(every: Iterable[Case]) -> list[Case]:
    """What an operator computes, the kernels' own tests say of all cases: here a few are enough of each set of them."""
    met: Counter[tuple[str, ...]] = Counter()
    chosen = []
    for case in every:
        met[case.operators] += 1
        if case.name in NETS if case.category == "RealModel" else met[case.operators] <= FEW:
            chosen.append(case)
    assert {case.name for case in chosen} >= NETS
    return chosen


@pytest.fixture(scope="module")
def suite() -> Suite:
    WorkerBackend.engine = ThreadedEngine({COMPUTE: 1, IO: 1})
    ran = WorkerBackend.suite = Suite()
    try:
        ran.failed = failures(_few_of_each(cases(WorkerBackend).values()))
    finally:
        WorkerBackend.engine.close()
    return ran


def test_what_the_kernels_pass_the_worker_passes(suite: Suite) -> None:
    only_here = {name: reason for name, reason in suite.failed.items() if name not in left_out()}
    assert not only_here


def test_programs_are_fused_and_laid_out(suite: Suite) -> None:
    """The suite would pass without the passes, too: they are there."""
    assert suite.nodes[FUSED] > 100
    assert suite.arena_bytes > 1 << 20
