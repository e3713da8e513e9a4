"""What a steady training step of one worker costs beside its kernels, on the CPU: microseconds a node, and bytes.

Every node runs by its own body, and Fetch and Send are counted as nodes. The kernels' own time is that of the same
calls made one after the other, with all that they take at hand; steps and bare calls take turns, and a figure is the
difference of the medians. Times are the processor's for the one thread that does all of it, so other load hardly shows.
The update of the values is left out: it is the optimizer's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from weft_graph.convert import convert
from weft_graph.ir import Graph, Initializer, Input, Node, Parameter
from weft_graph.types import BATCH, DType, TensorType
from weft_kernels.kernel import Array, Attributes, Inputs, Kernel, KernelContext, Outputs
from weft_worker.bind import bind
from weft_worker.engine.serial import SerialEngine
from weft_worker.plan import Plan
from weft_worker.segments import compiled
from weft_worker.step.inline import OwnValues
from weft_worker.step.pusher import StepPusher
from weft_worker.step.run import COMPUTE, IO, Runtime
from weft_worker.step.values import StepContext

BAR_US = 5.0
WIDTH, ROWS, WARM = 4, 2, 20
WAIT_S = 60.0


class StillStore:
    """Has every value, and leaves it as it is."""

    def __init__(self, values: Mapping[str, Array]) -> None:
        self._values = values
        self.looks, self.array_bytes = False, 0

    def value(self, key: str) -> Array:
        return self._values[key]

    def gradient(self, key: str) -> Array | None:
        """Any place will do."""
        return None

    def update(self, step: int, gradients: Mapping[str, Array], rows: Mapping[str, Any]) -> None:
        """Nothing is updated; `array_bytes` are those of the arrays that there are now, where somebody looks."""
        if self.looks:
            self.array_bytes = _array_bytes()


def main() -> None:
    """Measures one chain of layers and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=50)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    plan = bind(convert(_chain(options.layers), loss="loss", metrics={}).train, {BATCH: ROWS}, travels=False)
    step_us, kernels_us, stays, peak, array_bytes = _measured(plan, options.steps)
    nodes = len(plan.nodes)
    row = {
        "nodes": nodes,
        "step_us": step_us,
        "kernels_us": kernels_us,
        "node_us": (step_us - kernels_us) / nodes,
        "bar_us": BAR_US,
        "stays_bytes": stays,
        "peak_bytes": peak,
        "array_bytes": array_bytes,
    }
    print(f"{nodes} nodes, {step_us:.0f} us a step, {kernels_us:.0f} us of them in kernels")
    print(f"{row['node_us']:.2f} us a node beside its kernel (bar: {BAR_US:.0f} us)")
    print(
        f"{stays:.0f} bytes a step stay allocated; a step holds at most {peak} bytes besides: lists and tuples of the"
    )
    print(f"run, one item a value, and of arrays that it has made {array_bytes} bytes")
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


def _measured(plan: Plan, steps: int) -> tuple[float, float, float, int, int]:
    """(microseconds of a step, and of its kernels alone, medians; bytes a step that stay allocated when it is over, the
    most a step holds, and what of it is arrays when all kernels have run)."""
    values = {key: np.full(_shape(plan, place), 0.1, np.float32) for key, place in plan.fetched.items()}
    feeds = {name: np.ones(_shape(plan, place), plan.types[place].dtype.value) for name, place in plan.inputs.items()}
    engine = SerialEngine({COMPUTE: 1, IO: 1}, completion_timeout_s=WAIT_S)
    still = StillStore(values)
    store = cast(Any, still)
    pusher = StepPusher(Runtime(engine, store, inline=OwnValues(store, engine.variable("own values"))))

    def run(step: int) -> float:
        began = time.thread_time()
        pusher.push(plan, StepContext(step, 0, 7, "step"), feeds)
        engine.wait_all(WAIT_S)
        return (time.thread_time() - began) * 1e6

    for step in range(WARM):
        run(step)
    calls = _calls_of(plan, lambda recorded: pusher.push(recorded, StepContext(0, 0, 7, "step"), feeds))

    def run_bare() -> float:
        began = time.thread_time()
        for kernel, context, inputs, attributes in calls:
            kernel(context, inputs, attributes)
        return (time.thread_time() - began) * 1e6

    timed = [(run(WARM + step), run_bare()) for step in range(steps)]
    whole, bare = (statistics.median(each) for each in zip(*timed, strict=True))
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
    arrays_before, still.looks = _array_bytes(), True
    run(2 * (WARM + steps) + 1)
    tracemalloc.stop()
    engine.close()
    return whole, bare, stays / steps, peak, still.array_bytes - arrays_before


def _array_bytes() -> int:
    """Of the data of arrays that were made since the tracing began."""
    mine = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    return sum(one.size for one in tracemalloc.take_snapshot().filter_traces([mine]).traces)


def _calls_of(plan: Plan, push: Callable[[Plan], object]) -> list[tuple[Any, ...]]:
    """The kernels' calls in a step, with what they are given."""
    calls = list[tuple[Any, ...]]()

    def recording(kernel: Kernel) -> Kernel:
        def record(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
            calls.append((kernel, context, inputs, attributes))
            return kernel(context, inputs, attributes)

        return record

    recorded = {id(bound): replace(bound, kernel=recording(bound.kernel)) for bound in plan.nodes if bound.kernel}
    work = compiled([recorded.get(id(bound), bound) for bound in plan.nodes])
    push(replace(plan, work=work))
    return calls


def _shape(plan: Plan, place: int) -> tuple[int, ...]:
    return tuple(int(size) for size in plan.types[place].shape)


if __name__ == "__main__":
    main()
