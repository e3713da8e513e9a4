"""The worker's mind: what orders and runs' facts make the daemon do. No threads, no clock, no network."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.api.agent import Orders, SetOrder, WorkerAllocation
from weft.api.lifecycle import ALLOCATION_TRANSITIONS, AllocationEvent, AllocationState, after


@dataclass(frozen=True, slots=True)
class Lease:
    """What names an allocation: another term of the same id is another lease."""

    id: str
    term: int

    def __str__(self) -> str:
        return f"{self.id} (term {self.term})"


def lease_of(allocation: WorkerAllocation) -> Lease:
    return Lease(allocation.id, allocation.term)


@dataclass(frozen=True, slots=True)
class Ordered:
    """The server has said what to hold."""

    orders: Orders


@dataclass(frozen=True, slots=True)
class Lost:
    """The server does not know this worker any more."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A run has come so far."""

    lease: Lease
    event: AllocationEvent
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A run's thread has closed everything."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Terminate:
    """The daemon is to end."""


Stimulus = Ordered | Lost | Reached | Ended | Terminate


@dataclass(frozen=True, slots=True)
class StartRun:
    allocation: WorkerAllocation


@dataclass(frozen=True, slots=True)
class StopRun:
    lease: Lease


@dataclass(frozen=True, slots=True)
class RequestUpload:
    lease: Lease


@dataclass(frozen=True, slots=True)
class RequestSet:
    """Have the run set parameters that the server has under `number`."""

    lease: Lease
    number: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Report an event of an allocation to the server."""

    lease: Lease
    event: AllocationEvent
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing about the lease will be told any more."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Exit:
    """No run is left; the daemon may end."""


Instruction = StartRun | StopRun | RequestUpload | RequestSet | Tell | Forget | Exit


@dataclass(slots=True)
class Held:
    """The one run that there is. `stopping`: it was told to stop, and what it still says is not told on.

    `sets` are the numbers that it was asked to set: an order stays until it is reported as done, and is carried out
    once.
    """

    allocation: WorkerAllocation
    state: AllocationState = AllocationState.ASSIGNED
    stopping: bool = False
    sets: set[int] = field(default_factory=set)


@dataclass(slots=True)
class WorkerState:
    """What the worker holds and what it is to hold.

    Invariants: at most one run is held, from StartRun until its Ended. `over` are leases whose run has ended while
    the server still orders them: they are not run again. A held lease that is not `wanted` is stopping. After
    Terminate nothing is started.
    """

    wanted: dict[Lease, WorkerAllocation] = field(default_factory=dict)
    held: Held | None = None
    over: set[Lease] = field(default_factory=set)
    leaving: bool = False

    def handle(self, stimulus: Stimulus) -> list[Instruction]:
        """What is to be done about it, in this order."""
        match stimulus:
            case Ordered(orders):
                wanted = [one for one in orders.allocations if isinstance(one, WorkerAllocation)]
                return self._want(wanted) + self._uploads(orders.upload) + self._sets(orders.sets)
            case Lost():
                return self._want([])
            case Reached():
                return self._reached(stimulus)
            case Ended(lease):
                return self._ended(lease)
            case Terminate():
                self.leaving = True
                return self._stop_held() if self.held is not None else [Exit()]

    def _want(self, allocations: list[WorkerAllocation]) -> list[Instruction]:
        self.wanted = {lease_of(one): one for one in allocations}
        dropped = [lease for lease in sorted(self.over, key=str) if lease not in self.wanted]
        self.over.difference_update(dropped)
        instructions: list[Instruction] = [Forget(lease) for lease in dropped]
        if self.held is not None and lease_of(self.held.allocation) not in self.wanted:
            instructions += self._stop_held()
        return instructions + self._start_next()

    def _stop_held(self) -> list[Instruction]:
        if self.held is None or self.held.stopping:
            return []
        self.held.stopping = True
        return [StopRun(lease_of(self.held.allocation))]

    def _start_next(self) -> list[Instruction]:
        if self.held is not None or self.leaving:
            return []
        for lease, allocation in self.wanted.items():
            if lease not in self.over:
                self.held = Held(allocation)
                return [StartRun(allocation)]
        return []

    def _uploads(self, ids: list[str]) -> list[Instruction]:
        held = self.held
        if held is None or held.stopping or held.allocation.id not in ids:
            return []
        return [RequestUpload(lease_of(held.allocation))]

    def _sets(self, orders: list[SetOrder]) -> list[Instruction]:
        held = self.held
        if held is None or held.stopping:
            return []
        mine = [each.number for each in orders if each.allocation == held.allocation.id]
        fresh = [number for number in dict.fromkeys(mine) if number not in held.sets]
        held.sets.update(fresh)
        return [RequestSet(lease_of(held.allocation), number) for number in fresh]

    def _reached(self, fact: Reached) -> list[Instruction]:
        held = self.held
        if held is None or held.stopping or lease_of(held.allocation) != fact.lease:
            return []
        held.state = after(ALLOCATION_TRANSITIONS, held.state, fact.event)
        return [Tell(fact.lease, fact.event, fact.reason)]

    def _ended(self, lease: Lease) -> list[Instruction]:
        held = self.held
        if held is None or lease_of(held.allocation) != lease:
            return []
        self.held = None
        if lease not in self.wanted or self.leaving:
            instructions: list[Instruction] = [Forget(lease)]
        else:
            self.over.add(lease)
            instructions = self._untold_end(held, lease)
        return [*instructions, Exit()] if self.leaving else instructions + self._start_next()

    def _untold_end(self, held: Held, lease: Lease) -> list[Instruction]:
        """A run that was stopped, and is ordered again by now, must not leave the server waiting."""
        if held.state in {AllocationState.DONE, AllocationState.FAILED}:
            return []
        return [Tell(lease, AllocationEvent.FAILED, "the run was stopped and cannot be taken up again")]
