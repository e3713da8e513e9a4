"""Carries out segments of a run: their kernels, one after the other, on the values that are there."""

from __future__ import annotations

from collections.abc import Sequence

from weft.api.trace import SpanKind
from weft_graph.types import BATCH
from weft_kernels.errors import OutOfRangeError
from weft_kernels.kernel import KernelContext
from weft_worker.engine.errors import PartError
from weft_worker.errors import ValueMismatchError
from weft_worker.plan import BoundNode, Segment
from weft_worker.step.run import COMPUTE, StepRun
from weft_worker.table import described


def run_nodes(run: StepRun, nodes: Sequence[BoundNode]) -> None:
    """Runs nodes that have kernels, within the device's `use`. Raises PartError for what a kernel raises, and where it
    gives something else than its node names."""
    trace = run.context.trace
    for bound in nodes:
        begin_ns = 0 if trace is None else trace.now()
        try:
            _run_node(run, bound)
        except Exception as error:  # a kernel of any kind: the error names it
            name, said = run.name_of(bound), _bad_row(run, bound, error)
            raise PartError(name, described(run.table.take(bound.inputs)), error, said=said) from error
        if trace is not None:
            trace.add(SpanKind.COMPUTE, f"{bound.node.op_type} {bound.node.name}", run.context.step + 1, begin_ns)


def _run_node(run: StepRun, bound: BoundNode) -> None:
    assert bound.kernel is not None
    table, node, xp = run.table, bound.node, run.runtime.device.xp
    inputs = table.take(bound.inputs)
    wanted = table.wanted(xp, bound.outputs)
    step = run.context
    samples, checkpoint = run.plan.dims.get(BATCH), run.runtime.checkpoint
    # By place: a call by name takes twice as long, and there is one for each node.
    context = KernelContext(
        node.name, xp, step.seed, step.step, step.first_sample, samples, "", node.outputs, checkpoint, wanted
    )
    outputs = bound.kernel(context, inputs, bound.attributes)
    if len(outputs) < len(bound.outputs):
        raise ValueMismatchError(f"the kernel gave {len(outputs)} outputs, the node names {len(bound.outputs)}")
    for place, array, out in zip(bound.outputs, outputs, wanted, strict=False):
        if place is not None:
            table.settle(xp, place, array, out, inputs)
    table.release(bound.inputs)


def _bad_row(run: StepRun, bound: BoundNode, error: Exception) -> str | None:
    """The sentence about a label or an index of the data that is out of range; None for every other error."""
    locate = run.context.locate
    if locate is None or not isinstance(error, OutOfRangeError):
        return None
    where = locate(error.value, bound.node.inputs)
    if where is None:
        return None
    things, many = ("classes", "outputs") if error.what == "label" else ("rows", "rows")
    ignored = f", or leave it out with ignore_index={error.value}" if error.what == "label" else ""
    return (
        f"{error.what} {error.value} in {where} is not one of the {error.stop} {things} "
        f"({error.low} to {error.stop - 1}) of {bound.node.op_type} {bound.node.name!r}: correct the data, give "
        f"the model more {many}{ignored}"
    )


def compute(run: StepRun, segment: Segment) -> None:
    """Pushes a segment; each of its pieces has a variable that stands for what it makes. Segments of all runs in an
    arena follow each other in the order of pushing, since they take each other's memory; `order` is what they write for
    it."""
    engine = run.runtime.engine
    reads = run.variables_of(segment.reads)
    signals = tuple(run.signal(piece.nodes) for piece in segment.pieces)

    def work() -> None:
        with run.runtime.device.use():
            for piece, signal in zip(segment.pieces, signals, strict=True):
                run_nodes(run, piece.nodes)
                if signal is not signals[-1]:
                    engine.release(signal)

    engine.push(
        work,
        reads,
        (*signals, run.order),
        lane=COMPUTE,
        name=_name(run, segment),
    )


def _name(run: StepRun, segment: Segment) -> str:
    nodes = [bound for piece in segment.pieces for bound in piece.nodes]
    if len(nodes) == 1:
        return run.name_of(nodes[0])
    return f"{nodes[0].node.op_type} {nodes[0].node.name!r} to {nodes[-1].node.name!r} of {run.context.label}"
