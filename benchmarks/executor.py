"""What a steady training step costs in Python on the CPU: microseconds a node, and bytes that stay allocated.

The layers are narrow and the store answers at once, so that Python is most of a step. Every node runs by its own body,
in the serial engine; Fetch and Send are counted as nodes, and the time of NumPy's calls is part of the figure.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tracemalloc
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import numpy as np

from weft_graph.convert import convert
from weft_graph.ir import Graph, Initializer, Input, Node, Parameter
from weft_graph.types import BATCH, DType, TensorType
from weft_kernels.kernel import Array
from weft_worker.bind import bind
from weft_worker.engine.serial import SerialEngine
from weft_worker.plan import Plan
from weft_worker.step.hands import Hands
from weft_worker.step.lanes import COMPUTE, IO
from weft_worker.step.pusher import StepPusher
from weft_worker.step.values import StepContext

BAR_US = 5.0
WIDTH, ROWS, WARM = 4, 2, 20
WAIT_S = 60.0


class AnsweringStore:
    """Has every value, and takes every gradient, at once."""

    def __init__(self, values: Mapping[str, Array]) -> None:
        self._values = values

    def pull(self, key: str, version: int) -> Future[Any]:
        return _ended(self._values[key])

    def push(self, key: str, step: int, gradient: Array) -> Future[Any]:
        return _ended(None)

    def barrier(self, step: int, nothing: Any) -> Future[Any]:
        return _ended(None)


def main() -> None:
    """Measures one chain of layers and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=50)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    plan = bind(convert(_chain(options.layers), loss="loss", metrics={}).train, {BATCH: ROWS})
    step_us, stays, peak = _measured(plan, options.steps)
    nodes = len(plan.nodes)
    row = {
        "nodes": nodes,
        "step_us": step_us,
        "node_us": step_us / nodes,
        "bar_us": BAR_US,
        "stays_bytes": stays,
        "peak_bytes": peak,
    }
    print(f"{nodes} nodes, {step_us:.0f} us a step: {row['node_us']:.2f} us a node (bar: {BAR_US:.0f} us)")
    print(f"{stays:.0f} bytes a step stay allocated; a step holds at most {peak} bytes besides")
    if options.json is not None:
        options.json.write_text(json.dumps(row, indent=2) + "\n")


def _chain(layers: int) -> Graph:
    """MatMul and Relu in turns, then the mean."""
    type_ = TensorType(DType.FLOAT32, (WIDTH, WIDTH))
    draw = Initializer("RandomUniform", {"low": -0.5, "high": 0.5})
    nodes, value = list[Node](), "x"
    for index in range(layers):
        nodes.append(Node("MatMul", f"product{index}", (value, f"w{index}"), (f"h{index}",)))
        nodes.append(Node("Relu", f"relu{index}", (f"h{index}",), (f"r{index}",)))
        value = f"r{index}"
    nodes.append(Node("ReduceMean", "mean", (value,), ("loss",), {"keepdims": 0}))
    return Graph(
        name="chain",
        inputs=(Input("x", TensorType(DType.FLOAT32, (BATCH, WIDTH))),),
        parameters=tuple(Parameter(f"w{index}", type_, draw) for index in range(layers)),
        nodes=tuple(nodes),
        outputs=("loss",),
        constants=(),
    )


def _measured(plan: Plan, steps: int) -> tuple[float, float, int]:
    """(microseconds of a step, the median; bytes a step that stay allocated when it is over, the most a step holds)."""
    values = {key: np.full(_shape(plan, place), 0.1, np.float32) for key, place in plan.fetched.items()}
    feeds = {name: np.ones(_shape(plan, place), plan.types[place].dtype.value) for name, place in plan.inputs.items()}
    engine = SerialEngine({COMPUTE: 1, IO: 1}, completion_timeout_s=WAIT_S)
    pusher = StepPusher(Hands(engine, cast(Any, AnsweringStore(values))))

    def run(step: int) -> float:
        began = time.perf_counter()
        pusher.push(plan, StepContext(step, 0, 7, "step"), feeds)
        engine.wait_all(WAIT_S)
        return (time.perf_counter() - began) * 1e6

    for step in range(WARM):
        run(step)
    median = statistics.median([run(WARM + step) for step in range(steps)])
    tracemalloc.start()
    for step in range(WARM):
        run(WARM + steps + step)
    before = tracemalloc.get_traced_memory()[0]
    for step in range(steps):
        run(2 * WARM + steps + step)
    stays = tracemalloc.get_traced_memory()[0] - before
    began_with = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    run(2 * (WARM + steps))
    peak = tracemalloc.get_traced_memory()[1] - began_with
    tracemalloc.stop()
    engine.close()
    return median, stays / steps, peak


def _shape(plan: Plan, place: int) -> tuple[int, ...]:
    return tuple(int(size) for size in plan.types[place].shape)


def _ended(value: object) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


if __name__ == "__main__":
    main()
