"""Carries out segments of a run: their kernels, one after the other, on the values that are there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft.api.trace import SpanKind
from weft_graph.types import BATCH
from weft_kernels.errors import OutOfRangeError
from weft_kernels.kernel import KernelContext
from weft_worker.engine.errors import PartError
from weft_worker.errors import ValueMismatchError
from weft_worker.plan import BoundNode, Piece, Plan, Segment
from weft_worker.step.run import COMPUTE, StepRun
from weft_worker.table import described


def run_piece(run: StepRun, piece: Piece) -> None:
    """Runs a piece's nodes, within the device's `use`; raises as `run_nodes`. A traced step has each by itself."""
    if run.graphs is None or run.context.trace is not None:
        run_nodes(run, piece.nodes)
    else:
        run.graphs.run(run.table, piece.nodes, partial(run_nodes, run))


def begin(run: StepRun) -> None:
    """Called once before the first node of a run, within the device's `use`."""
    if run.graphs is not None:
        run.graphs.device.after_copies()  # The run writes where the last one had what is copied.


def run_nodes(run: StepRun, nodes: Sequence[BoundNode]) -> None:
    """Runs nodes that have kernels, within the device's `use`. Raises PartError for what a kernel raises, and where it
    gives something else than its node names.

    What a step pays for a node beside its kernel is in this loop: a call more in it takes as long as a small kernel.
    """
    step, table, xp = run.context, run.table, run.runtime.device.xp
    trace, arrays, readers, calls, uploads = step.trace, table.arrays, table.readers, table.calls, table.uploads
    for bound in nodes:
        begin_ns = 0 if trace is None else trace.now()
        try:
            context, lies_still = calls.get(id(bound)) or _context_of(run, bound)
            if not lies_still:
                context.placed = table.wanted(xp, bound.outputs)
            context.seed, context.step, context.first_sample = step.seed, step.step, step.first_sample
            if uploads:
                table.land(bound.inputs)
            inputs = [None if place is None else arrays[place] for place in bound.inputs]
            outputs = bound.kernel(context, inputs, bound.attributes)  # type: ignore[misc]  # these have one
            if len(outputs) < len(bound.outputs):
                message = f"the kernel gave {len(outputs)} outputs, the node names {len(bound.outputs)}"
                raise ValueMismatchError(message)
            for place, array, wanted in zip(bound.outputs, outputs, context.placed, strict=False):
                if array is wanted and place is not None and readers[place] > 0:
                    arrays[place] = array
                elif place is not None:
                    table.settle(xp, place, array, wanted, inputs)
            table.release(bound.inputs)
            if not lies_still:
                context.placed = ()  # Whoever reads an output drops it.
        except Exception as error:  # a kernel of any kind: the error names it
            name, said = run.name_of(bound), _bad_row(run, bound, error)
            raise PartError(name, described(table.take(bound.inputs)), error, said=said) from error
        if trace is not None:
            trace.add(SpanKind.COMPUTE, f"{bound.node.op_type} {bound.node.name}", step.step + 1, begin_ns)


def _context_of(run: StepRun, bound: BoundNode) -> tuple[KernelContext, bool]:
    """What a node's kernel is told, once for all runs of the plan, and whether its outputs lie at the same places in
    each."""
    node, table, runtime = bound.node, run.table, run.runtime
    lies_still = table.keeps(bound.outputs)
    context = KernelContext(
        node.name,
        runtime.device.xp,
        samples=run.plan.dims.get(BATCH),
        asked=node.outputs,
        checkpoint=runtime.checkpoint,
        placed=table.wanted(runtime.device.xp, bound.outputs) if lies_still else (),
    )
    known = table.calls[id(bound)] = context, lies_still
    return known


def _bad_row(run: StepRun, bound: BoundNode, error: Exception) -> str | None:
    """The sentence about a label or an index of the data that is out of range; None for every other error."""
    locate = run.context.locate
    if locate is None or not isinstance(error, OutOfRangeError):
        return None
    where = locate(error.value, _fed_to(run.plan, bound))
    if where is None:
        return None
    key = "" if error.what == "label" else _looked_up(run.plan, bound)
    of = f"parameter {key!r}" if key else f"{bound.node.op_type} {bound.node.name!r}"
    things = "rows"
    more = "rows"
    if bound.node.op_type == "GatherElements" and not key:  # as a loss picks each sample's class
        things = more = "outputs"
    remedies = "correct the data" if error.value < error.low else f"correct the data, or give the model more {more}"
    if error.what == "label":
        things = "classes"
        remedies = f"correct the data, give the model more outputs, or leave it out with ignore_index={error.value}"
    return (
        f"{error.what} {error.value} in {where}, read in {run.context.label}, is not one of the {error.stop} {things} "
        f"({error.low} to {error.stop - 1}) of {of}: {remedies}"
    )


def _looked_up(plan: Plan, bound: BoundNode) -> str:
    """The key whose rows a node picks: it reads the whole value first, or names the rows that are fetched next."""
    whole, rows = set(bound.inputs[:1]) - {None}, set(bound.outputs[:1]) - {None}
    return next(
        (each.key for each in plan.nodes if each.key and (whole & {*each.outputs} or rows & {*each.inputs})), ""
    )


_MOVES = frozenset(
    {"Cast", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators whose output has elements of their first input, as they are."""


def _fed_to(plan: Plan, bound: BoundNode) -> set[str]:
    """The plan's inputs whose elements this node reads, as they are or moved."""
    movers = {place: other.inputs[0] for other in plan.nodes if other.node.op_type in _MOVES for place in other.outputs}
    found = set()
    for start in bound.inputs:
        place = start
        while place in movers:
            place = movers[place]
        if place is not None:
            found.add(plan.names[place])
    return found & set(plan.inputs)


def compute(run: StepRun, segment: Segment) -> None:
    """Pushes a segment; each of its pieces has a variable that stands for what it makes. Segments of all runs in an
    arena follow each other in the order of pushing, since they take each other's memory; `order` is what they write for
    it."""
    engine = run.runtime.engine
    reads = run.variables_of(segment.reads)
    signals = tuple(run.signal(piece.nodes) for piece in segment.pieces)
    is_first = segment is next(work for work in run.plan.work if isinstance(work, Segment))

    def work() -> None:
        with run.runtime.device.use():
            if is_first:
                begin(run)
            for piece, signal in zip(segment.pieces, signals, strict=True):
                run_piece(run, piece)
                run.bring(piece, sends=run.part is None)
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
