"""Pushes runs of plans to the engine: segments, and the communication around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.weft_domain import FETCH, FETCH_ROWS, SEND, SESSION
from weft_kernels.kernel import Array
from weft_kvstore.store import Readable
from weft_worker.arena import Arenas
from weft_worker.engine.work import OnComplete, Variable
from weft_worker.errors import DeviceError
from weft_worker.own_values import OwnStore
from weft_worker.pace import Pace
from weft_worker.plan import Plan, Segment
from weft_worker.step.accumulation import StepPart
from weft_worker.step.communication import push_communication
from weft_worker.step.completing import completing
from weft_worker.step.computation import compute
from weft_worker.step.feeding import feed, fill
from weft_worker.step.hands import Hands
from weft_worker.step.lanes import IO
from weft_worker.step.on_own_values import push_on_own
from weft_worker.step.on_shared_values import push_on_shared
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
        self._turn = hands.engine.variable("segments")
        self._memory_now: Array | None = None
        self._arrays: dict[int, tuple[Plan, dict[int, Array]]] = {}
        """For each plan by its identity, the arrays of its values in that memory."""
        self._gradients: dict[str, Array] = {}
        """By key: see `_gradients_of`."""

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
        """Pushes all of a plan's work. With `fetched`, whole keys' values come from there instead of the store.

        `feeds` has an array for each of the plan's inputs but `late`; `nothing` are keys that the barrier declares
        nothing for. A `part` of a step is sent with the others by the last of them. `reads`
        stands in the place of the store where values are read.
        """
        memory, turn = self._memory(plan, context)
        table, reads = ValueTable(plan, memory), reads or self._hands.store
        run = StepRun(self._hands, plan, context, table, reads, turn, nothing=tuple(nothing), part=part)
        feed(run, feeds, late)
        if self._hands.own is not None and fetched is None:
            push_on_own(run, self._hands.own)
            return run.pushed()
        if self._hands.shared is not None and fetched is None and part is None:
            push_on_shared(run, self._hands.shared)
            return run.pushed()
        for work in plan.work:
            if isinstance(work, Segment):
                compute(run, work)
                for piece in work.pieces:
                    push_communication(run, piece.leaving)
            elif fetched is not None and work[0].node.op_type == FETCH:
                fill(run, work, fetched)
            else:
                push_communication(run, work)
        return run.pushed()

    def _memory(self, plan: Plan, context: StepContext) -> tuple[dict[int, Array] | None, Variable]:
        """The arrays of the plan's values in an arena, and its turn; none where each has its own memory.

        Raises DeviceError, which names the largest of them.
        """
        if self.arenas is None:
            return None, self._turn
        nbytes = plan.placement.layout.arena_bytes
        try:
            memory, turn = self.arenas.take(nbytes)
        except MemoryError as error:
            largest = plan.placement.largest(plan.names)
            message = f"{context.label}: its values need {nbytes} bytes at once, which cannot be had ({error})"
            raise DeviceError(f"{message}; the largest are {largest}") from error
        return self._arrays_in(plan, memory), turn

    def _arrays_in(self, plan: Plan, memory: Array | None) -> dict[int, Array]:
        if memory is not self._memory_now:
            self._memory_now, self._arrays = memory, {}
        known = self._arrays.get(id(plan))
        if known is None:
            device = self._hands.device
            with device.use():
                arrays = {} if memory is None else plan.placement.arrays(device.xp, memory)
                if self._hands.own is not None:
                    arrays |= self._gradients_of(plan, self._hands.own.store)
                known = self._arrays[id(plan)] = plan, arrays
        return known[1]

    def _gradients_of(self, plan: Plan, store: OwnStore) -> dict[int, Array]:
        """Memory for the gradients that sessions make, by place: where nothing travels they are used up within the
        step, so the next one, of any plan, writes there again."""
        made = {place for bound in plan.nodes if bound.node.op_type == SESSION for place in bound.outputs}
        found: dict[int, Array] = {}
        for bound in plan.nodes:
            place = bound.inputs[0] if bound.node.op_type == SEND else None
            lying = None if place is None else plan.placement.lying.get(place)
            if place not in made or place in plan.outputs.values() or lying is None or lying.offset is not None:
                continue
            assert place is not None
            array = store.gradient(bound.key)
            if array is None or not lying.is_of(array):
                array = self._gradients.get(bound.key)
                if array is None or array.shape != plan.types[place].shape or not lying.is_of(array):
                    array = self._gradients[bound.key] = lying.array(self._hands.device.xp, None)
            found[place] = array
        return found

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
