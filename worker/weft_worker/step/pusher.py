"""Pushes runs of plans to the engine, node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.weft_domain import FETCH, FETCH_ROWS
from weft_kernels.kernel import Array
from weft_kvstore.store import Readable
from weft_worker.arena import Arenas
from weft_worker.engine.work import OnComplete, Variable
from weft_worker.errors import DeviceError
from weft_worker.pace import Pace
from weft_worker.plan import Plan
from weft_worker.step.accumulation import StepPart
from weft_worker.step.communication import push_communication
from weft_worker.step.completing import completing
from weft_worker.step.computation import compute
from weft_worker.step.feeding import feed, fill
from weft_worker.step.hands import Hands
from weft_worker.step.lanes import COMPUTE, IO
from weft_worker.step.run import StepRun
from weft_worker.step.values import Ending, LateFeed, PushedStep, StepContext
from weft_worker.table import ValueTable


class StepPusher:
    """Turns runs of plans into the work of the hands' engine. Values lie in an arena, unless `arena` is False: then
    each has its own memory."""

    def __init__(self, hands: Hands, *, arena: bool = True) -> None:
        self._hands = hands
        self.engine = hands.engine
        self.arenas = Arenas(hands.engine, hands.device) if arena else None

    def push(
        self,
        plan: Plan,
        context: StepContext,
        feeds: Mapping[str, Array],
        *,
        fetched: Mapping[str, Array] | None = None,
        nothing: Sequence[str] = (),
        late: LateFeed | None = None,
        part: StepPart | None = None,
        reads: Readable | None = None,
    ) -> PushedStep:
        """Pushes every node. With `fetched`, whole keys' values come from there instead of the store.

        `feeds` has an array for each of the plan's inputs but `late`; `nothing` are keys that the barrier declares
        nothing for. A `part` of a step is sent with the others by the last of them. `reads`
        stands in the place of the store where values are read.
        """
        memory, turn = self._memory(plan, context)
        table, reads = ValueTable(plan, memory), reads or self._hands.store
        run = StepRun(self._hands, plan, context, table, reads, nothing=tuple(nothing), turn=turn, part=part)
        feed(run, feeds, late)
        for bound in plan.nodes:
            if bound.kernel is not None:
                compute(run, bound)
            elif bound.node.op_type == FETCH and fetched is not None:
                fill(run, bound, fetched)
            else:
                push_communication(run, bound)
        return run.pushed()

    def _memory(self, plan: Plan, context: StepContext) -> tuple[Array | None, tuple[Variable, ...]]:
        """Memory for the plan's values, and its turn; nothing where each has its own.

        Raises DeviceError, which names the largest of them.
        """
        if self.arenas is None:
            return None, ()
        nbytes = plan.placement.layout.arena_bytes
        try:
            memory, turn = self.arenas.take(nbytes, COMPUTE)
        except MemoryError as error:
            largest = plan.placement.largest(plan.names)
            message = f"{context.label}: its values need {nbytes} bytes at once, which cannot be had ({error})"
            raise DeviceError(f"{message}; the largest are {largest}") from error
        return memory, (turn,)

    def push_absence(
        self, step: int, nothing: Sequence[str], pace: Pace, label: str, ending: Ending | None = None
    ) -> Variable:
        """Declares nothing for every key of `nothing`, for a slot that has no samples of the step.

        First it waits for the step's version of the key `pace`, whose value is dropped: a slot that computes nothing
        would otherwise run ahead of the others, further than the store lets it.
        """
        engine, store = self._hands.engine, self._hands.store
        reached, barrier = engine.variable(f"{pace.key} of {label}"), engine.variable(f"barrier of {label}")
        fetch = FETCH_ROWS if pace.rows else FETCH

        def wait(on_complete: OnComplete) -> None:
            pace.reached(store, step).add_done_callback(completing(on_complete))

        def declare(on_complete: OnComplete) -> None:
            keep = None if ending is None else ending.take
            store.barrier(step, nothing).add_done_callback(completing(on_complete, keep))

        engine.push_async(wait, [], [reached], lane=IO, name=f"{fetch} {pace.key!r} of {label}")
        engine.push_async(declare, [reached], [barrier], lane=IO, name=f"SendBarrier of {label}")
        return barrier
