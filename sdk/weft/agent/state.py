"""What orders and facts make an agent's daemon do: which children it starts, stops and tells of. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.api.agent import AgentKind, Orders, Report, SetOrder, ShardAllocation, SnapshotOrder, WorkerAllocation
from weft.api.lifecycle import (
    ALLOCATION_TRANSITIONS,
    AllocationEvent,
    AllocationState,
    IllegalTransitionError,
    after,
)

AnyAllocation = ShardAllocation | WorkerAllocation


@dataclass(frozen=True, slots=True)
class Lease:
    """What names an allocation: another term of the same id is another lease."""

    id: str
    term: int

    def __str__(self) -> str:
        return f"{self.id} (term {self.term})"


def lease_of(allocation: AnyAllocation) -> Lease:
    return Lease(allocation.id, allocation.term)


# --- Stimuli ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ordered:
    """The server has said what to hold."""

    orders: Orders


@dataclass(frozen=True, slots=True)
class Lost:
    """The server does not know this agent any more."""


@dataclass(frozen=True, slots=True)
class Said:
    """A child has said facts about its allocation."""

    lease: Lease
    facts: Report


@dataclass(frozen=True, slots=True)
class Ended:
    """A child's process has ended, `how` in words. `lost`: a signal or its forkserver's end has ended it."""

    lease: Lease
    how: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Terminate:
    """The daemon is to end."""


Stimulus = Ordered | Lost | Said | Ended | Terminate

# --- Instructions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Start a child for an allocation."""

    allocation: AnyAllocation


@dataclass(frozen=True, slots=True)
class Stop:
    """End a child."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class RequestUpload:
    """Have the child bring its parameters at once."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class RequestSet:
    """Have the child set parameters that the server has under `number`."""

    lease: Lease
    number: int


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """Have the child write what it holds at version `step` to a folder; of tables what has changed since another."""

    lease: Lease
    step: int
    folder: str
    since: int | None = None


@dataclass(frozen=True, slots=True)
class Tell:
    """Report facts about an allocation to the server."""

    lease: Lease
    facts: Report


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing about the lease will be told any more."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Exit:
    """No child is left; the daemon may end."""


Instruction = Start | Stop | RequestUpload | RequestSet | RequestSnapshot | Tell | Forget | Exit

# --- The state --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Held:
    """A child. `stopping`: it was told to end, and what it still says is not told on.

    `sets` are the numbers that it was asked to set: an order stays until it is reported as done, and is carried out
    once; `snapshots` are the steps at which it was asked to write what it holds.
    """

    allocation: AnyAllocation
    state: AllocationState = AllocationState.ASSIGNED
    stopping: bool = False
    sets: set[int] = field(default_factory=set)
    snapshots: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Holding:
    """What an agent of a `kind` holds and what it is to hold, at most `at_once` children; None: any number.

    Invariants: a lease is in `held` from its Start until its Ended. `over` are leases whose child has ended while the
    server still orders them: they are not started again. A held lease that is not `wanted` is stopping. After Terminate
    nothing is started.
    """

    kind: AgentKind
    at_once: int | None = None
    wanted: dict[Lease, AnyAllocation] = field(default_factory=dict)
    held: dict[Lease, Held] = field(default_factory=dict)
    over: set[Lease] = field(default_factory=set)
    leaving: bool = False

    def handle(self, stimulus: Stimulus) -> list[Instruction]:
        """What is to be done about it, in this order."""
        match stimulus:
            case Ordered(orders):
                wanted = [one for one in orders.allocations if one.kind == self.kind]
                instructions = self._want(wanted) + self._uploads(orders.upload) + self._sets(orders.sets)
                return instructions + self._snapshots(orders.snapshots)
            case Lost():
                return self._want([])
            case Said(lease, facts):
                return self._said(lease, facts)
            case Ended():
                return self._ended(stimulus)
            case Terminate():
                self.leaving = True
                return self._stop(list(self.held)) if self.held else [Exit()]

    def _want(self, allocations: list[AnyAllocation]) -> list[Instruction]:
        self.wanted = {lease_of(one): one for one in allocations}
        dropped = [lease for lease in sorted(self.over, key=str) if lease not in self.wanted]
        self.over.difference_update(dropped)
        instructions: list[Instruction] = [Forget(lease) for lease in dropped]
        instructions += self._stop([lease for lease in self.held if lease not in self.wanted])
        return instructions + self._start()

    def _stop(self, leases: list[Lease]) -> list[Instruction]:
        stopped: list[Instruction] = []
        for lease in leases:
            if not self.held[lease].stopping:
                self.held[lease].stopping = True
                stopped.append(Stop(lease))
        return stopped

    def _start(self) -> list[Instruction]:
        started: list[Instruction] = []
        for lease, allocation in self.wanted.items() if not self.leaving else ():
            if self.at_once is not None and len(self.held) >= self.at_once:
                break
            if lease not in self.over and lease not in self.held:
                self.held[lease] = Held(allocation)
                started.append(Start(allocation))
        return started

    def _uploads(self, ids: list[str]) -> list[Instruction]:
        return [RequestUpload(lease) for lease, held in self.held.items() if lease.id in ids and not held.stopping]

    def _sets(self, orders: list[SetOrder]) -> list[Instruction]:
        asked: list[Instruction] = []
        for lease, held in self.held.items():
            mine = [each.number for each in orders if each.allocation == lease.id and not held.stopping]
            fresh = [number for number in dict.fromkeys(mine) if number not in held.sets]
            held.sets.update(fresh)
            asked += [RequestSet(lease, number) for number in fresh]
        return asked

    def _snapshots(self, orders: list[SnapshotOrder]) -> list[Instruction]:
        asked: list[Instruction] = []
        for lease, held in self.held.items():
            for order in orders:
                if order.allocation == lease.id and not held.stopping and order.step not in held.snapshots:
                    held.snapshots.add(order.step)
                    asked.append(RequestSnapshot(lease, order.step, order.folder, order.since))
        return asked

    def _said(self, lease: Lease, facts: Report) -> list[Instruction]:
        held = self.held.get(lease)
        if held is None or held.stopping:
            return []
        if facts.event is not None:
            try:
                held.state = after(ALLOCATION_TRANSITIONS, held.state, facts.event)
            except IllegalTransitionError as error:
                return self._failed(lease, held, f"its process said what it cannot say now: {error}")
        return [Tell(lease, facts)]

    def _ended(self, ended: Ended) -> list[Instruction]:
        lease = ended.lease
        held = self.held.pop(lease, None)
        if held is None:
            return []
        if lease not in self.wanted or self.leaving:
            instructions: list[Instruction] = [Forget(lease)]
        else:
            self.over.add(lease)
            instructions = self._untold_end(held, ended)
        if self.leaving:
            return instructions if self.held else [*instructions, Exit()]
        return instructions + self._start()

    def _untold_end(self, held: Held, ended: Ended) -> list[Instruction]:
        """A child that died, or was stopped and is ordered again by now, must not leave the server waiting."""
        reason = "it was stopped and cannot be taken up again" if held.stopping else ended.how
        return self._failed(ended.lease, held, reason, lost=ended.lost)

    def _failed(self, lease: Lease, held: Held, reason: str, *, lost: bool = False) -> list[Instruction]:
        """Nothing where its end is told already."""
        if held.state in {AllocationState.DONE, AllocationState.FAILED}:
            return []
        held.state = AllocationState.FAILED
        failed = Report(term=lease.term, seq=0, event=AllocationEvent.FAILED, reason=reason, lost=lost)
        return [Tell(lease, failed)]
