"""What an agent holds: stimuli in, instructions out, invariants checked after every stimulus."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weft.agent.state import (
    Ended,
    Exit,
    Forget,
    Holding,
    Lease,
    Lost,
    Ordered,
    RequestSet,
    RequestSnapshot,
    RequestUpload,
    Said,
    Start,
    Stop,
    Tell,
    Terminate,
    lease_of,
)
from weft.api.agent import AgentKind, Orders, Report, SetOrder, ShardAllocation, SnapshotOrder, WorkerAllocation
from weft.api.data import DataSpec, NumpySource
from weft.api.lifecycle import ALLOCATION_TRANSITIONS, AllocationEvent, AllocationState, after
from weft.api.store import StoreSpec

STORE = StoreSpec(
    job="job-1", term=1, seed=0, slots=1, shards=[], keys=[], rule="sgd", hyper={}, slice_bytes=64, merge="slot"
)
READY, RUNNING, DONE, FAILED = (AllocationEvent(name) for name in ("ready", "running", "done", "failed"))


def allocation(name: str = "a", term: int = 1) -> WorkerAllocation:
    return WorkerAllocation(
        id=name,
        term=term,
        incarnation=1,
        job="job-1",
        slot=0,
        programs={},
        data=DataSpec(source=NumpySource(path="x.npz"), columns={}),
        seed=0,
        steps=1,
        evaluate_every=None,
        keeper=True,
        store=STORE,
    )


def orders(
    *held,
    upload: tuple[str, ...] = (),
    sets: tuple[tuple[str, int], ...] = (),
    snapshots: tuple[tuple[str, int], ...] = (),
) -> Ordered:
    return Ordered(
        Orders(
            version=1,
            allocations=list(held),
            upload=list(upload),
            sets=[SetOrder(allocation=name, number=number) for name, number in sets],
            snapshots=[SnapshotOrder(allocation=name, step=step, folder="/there") for name, step in snapshots],
        )
    )


def reached(lease: Lease, event: AllocationEvent, reason: str | None = None) -> Said:
    return Said(lease, Report(term=lease.term, seq=0, event=event, reason=reason))


def told(lease: Lease, event: AllocationEvent, reason: str | None = None) -> Tell:
    return Tell(lease, Report(term=lease.term, seq=0, event=event, reason=reason))


GONE = "its process was ended by SIGSEGV"
A, B = allocation("a"), allocation("b")
LEASE_A, LEASE_B = lease_of(A), lease_of(B)


def running(state: Holding) -> None:
    """Brings the held run to where it trains."""
    (lease,) = state.held
    state.handle(reached(lease, READY))
    state.handle(reached(lease, RUNNING))


@pytest.fixture
def state() -> Holding:
    return Holding(AgentKind.WORKER, at_once=1)


def test_an_ordered_allocation_is_started_once(state):
    assert state.handle(orders(A)) == [Start(A)]
    assert state.handle(orders(A)) == []


def test_what_a_run_reaches_is_told(state):
    state.handle(orders(A))
    assert state.handle(reached(LEASE_A, READY)) == [told(LEASE_A, READY)]
    assert state.handle(reached(LEASE_A, RUNNING)) == [told(LEASE_A, RUNNING)]
    assert state.handle(reached(LEASE_A, FAILED, "step 3")) == [told(LEASE_A, FAILED, "step 3")]


def test_a_run_that_is_over_is_not_run_again_while_it_is_still_ordered(state):
    state.handle(orders(A))
    running(state)
    state.handle(reached(LEASE_A, DONE))
    assert state.handle(Ended(LEASE_A, GONE)) == []
    assert state.handle(orders(A)) == []
    assert state.handle(orders()) == [Forget(LEASE_A)]


def test_a_child_that_dies_is_told_as_failed_by_how_it_ended(state):
    state.handle(orders(A))
    running(state)
    assert state.handle(Ended(LEASE_A, GONE)) == [told(LEASE_A, FAILED, GONE)]
    assert state.handle(orders(A)) == []


def test_a_shard_holds_any_number_of_jobs_and_starts_each_at_once():
    state = Holding(AgentKind.SHARD)
    one, other = (ShardAllocation(id=name, term=1, job=name, shard=0, store=STORE) for name in "ab")
    assert state.handle(orders(one, other)) == [Start(one), Start(other)]
    assert state.handle(reached(lease_of(one), READY)) == [told(lease_of(one), READY)]
    newer = one.model_copy(update={"term": 2})
    assert state.handle(orders(newer)) == [Stop(lease_of(one)), Stop(lease_of(other)), Start(newer)]
    assert state.handle(Ended(lease_of(one), GONE)) == [Forget(lease_of(one))]
    assert state.handle(Terminate()) == [Stop(lease_of(newer))]
    assert state.handle(Ended(lease_of(other), GONE)) == [Forget(lease_of(other))]
    assert state.handle(Ended(lease_of(newer), GONE)) == [Forget(lease_of(newer)), Exit()]


def test_a_worker_survives_for_the_next_job(state):
    state.handle(orders(A))
    state.handle(reached(LEASE_A, FAILED, "no such file"))
    state.handle(Ended(LEASE_A, GONE))
    assert state.handle(orders(B)) == [Forget(LEASE_A), Start(B)]


def test_a_run_that_is_not_ordered_any_more_is_stopped_and_the_next_starts_when_it_has_ended(state):
    state.handle(orders(A))
    running(state)
    assert state.handle(orders(B)) == [Stop(LEASE_A)]
    assert state.handle(reached(LEASE_A, FAILED, "the store is closed")) == []
    assert state.handle(Ended(LEASE_A, GONE)) == [Forget(LEASE_A), Start(B)]


def test_a_second_allocation_waits_until_the_first_is_over(state):
    assert state.handle(orders(A, B)) == [Start(A)]
    running(state)
    state.handle(reached(LEASE_A, DONE))
    assert state.handle(Ended(LEASE_A, GONE)) == [Start(B)]


def test_another_term_of_the_same_allocation_is_another_lease(state):
    state.handle(orders(A))
    newer = allocation("a", term=2)
    assert state.handle(orders(newer)) == [Stop(LEASE_A)]
    assert state.handle(Ended(LEASE_A, GONE)) == [Forget(LEASE_A), Start(newer)]


def test_a_lost_worker_stops_what_it_runs(state):
    state.handle(orders(A))
    assert state.handle(Lost()) == [Stop(LEASE_A)]
    assert state.handle(Lost()) == []
    assert state.handle(Ended(LEASE_A, GONE)) == [Forget(LEASE_A)]


def test_a_run_that_was_stopped_and_is_ordered_again_is_told_as_failed(state):
    state.handle(orders(A))
    running(state)
    state.handle(orders())
    state.handle(orders(A))
    (told,) = state.handle(Ended(LEASE_A, GONE))
    assert isinstance(told, Tell)
    assert told.facts.event is FAILED


def test_an_upload_is_asked_of_the_run_that_holds_the_allocation(state):
    state.handle(orders(A))
    assert state.handle(orders(A, upload=("a",))) == [RequestUpload(LEASE_A)]
    assert state.handle(orders(A, upload=("b",))) == []


def test_a_set_is_asked_of_the_run_once_however_long_it_is_ordered(state):
    first = state.handle(orders(A, sets=(("a", 1), ("b", 2))))
    assert first == [Start(A), RequestSet(LEASE_A, 1)]
    assert state.handle(orders(A, sets=(("a", 1), ("a", 2), ("a", 2)))) == [RequestSet(LEASE_A, 2)]
    assert state.handle(orders(A, sets=(("a", 2),))) == []


def test_a_set_is_not_asked_of_a_run_that_is_being_stopped(state):
    state.handle(orders(A))
    state.handle(orders())
    assert state.handle(orders(A, sets=(("a", 1),))) == []


def test_a_snapshot_is_asked_of_the_run_once_however_long_it_is_ordered(state):
    assert state.handle(orders(A, snapshots=(("a", 20),))) == [Start(A), RequestSnapshot(LEASE_A, 20, "/there")]
    again = orders(A, snapshots=(("a", 20), ("a", 40), ("b", 40)))
    assert state.handle(again) == [RequestSnapshot(LEASE_A, 40, "/there")]
    assert state.handle(orders(snapshots=(("a", 60),))) == [Stop(LEASE_A)]


def test_another_run_is_asked_for_numbers_of_its_own(state):
    state.handle(orders(A, sets=(("a", 1),)))
    newer = allocation("a", term=2)
    state.handle(orders(newer))
    state.handle(Ended(LEASE_A, GONE))
    assert state.handle(orders(newer, sets=(("a", 1),))) == [RequestSet(lease_of(newer), 1)]


def test_a_shards_allocation_is_not_a_workers(state):
    shard = ShardAllocation(id="s", term=1, job="job-1", shard=0, store=STORE)
    assert state.handle(orders(shard)) == []


def test_an_idle_worker_ends_at_once(state):
    assert state.handle(Terminate()) == [Exit()]


def test_a_busy_worker_ends_when_its_run_has(state):
    state.handle(orders(A))
    assert state.handle(Terminate()) == [Stop(LEASE_A)]
    assert state.handle(orders(B)) == []
    assert state.handle(Ended(LEASE_A, GONE)) == [Forget(LEASE_A), Exit()]


def test_an_event_that_the_lifecycle_does_not_know_fails_the_allocation_once(state):
    state.handle(orders(A))
    (told,) = state.handle(reached(LEASE_A, DONE))
    assert isinstance(told, Tell)
    assert (told.lease, told.facts.event) == (LEASE_A, FAILED)
    assert "'assigned' knows no event 'done'" in (told.facts.reason or "")
    assert state.handle(reached(LEASE_A, DONE)) == state.handle(Ended(LEASE_A, GONE)) == []


class WorkerMachine(RuleBasedStateMachine):
    """Any interleaving of orders and facts: a model of the daemon's hands carries the instructions out."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Holding(AgentKind.WORKER, at_once=1)
        self.run: Lease | None = None
        self.stopped = False
        self.open: set[Lease] = set()
        self.told: dict[Lease, AllocationState] = {}
        self.exited = False
        self.sets: set[tuple[Lease, int]] = set()

    def carry_out(self, stimulus) -> None:
        for instruction in self.state.handle(stimulus):
            match instruction:
                case Start(started):
                    assert self.run is None, "one run at a time"
                    assert not self.exited, "nothing is started at the end"
                    self.run, self.stopped = lease_of(started), False
                    assert self.run not in self.open, "a lease is run once"
                    self.sets = {each for each in self.sets if each[0] != self.run}
                    self.open.add(self.run)
                    self.told[self.run] = AllocationState.ASSIGNED
                case Stop(lease):
                    assert lease == self.run
                    assert not self.stopped, "a run is stopped once"
                    self.stopped = True
                case RequestUpload(lease):
                    assert lease == self.run
                case RequestSet(lease, number):
                    assert lease == self.run
                    assert not self.stopped
                    assert (lease, number) not in self.sets, "a set is asked for once"
                    self.sets.add((lease, number))
                case Tell(lease, facts):
                    assert lease in self.open
                    self.told[lease] = after(ALLOCATION_TRANSITIONS, self.told[lease], facts.event)
                case Forget(lease):
                    self.open.remove(lease)
                case Exit():
                    self.exited = True

    @rule(
        names=st.lists(st.sampled_from("ab"), max_size=2, unique=True),
        upload=st.sampled_from("ab"),
        sets=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3)), max_size=3),
    )
    def order(self, names, upload, sets) -> None:
        self.carry_out(orders(*(allocation(name) for name in names), upload=(upload,), sets=tuple(sets)))

    @rule()
    def lose(self) -> None:
        self.carry_out(Lost())

    @precondition(lambda self: self.run is not None)
    @rule(fails=st.booleans())
    def progress(self, fails) -> None:
        """The run says what comes next; a run may go on for a while after it was told to stop."""
        follows = {"assigned": READY, "ready": RUNNING, "running": DONE}
        event = follows.get(self.told[self.run])
        if event is not None:
            self.carry_out(reached(self.run, FAILED if fails else event, None))

    @precondition(lambda self: self.run is not None and (self.stopped or self.told[self.run] in {"done", "failed"}))
    @rule()
    def end(self) -> None:
        lease, self.run = self.run, None
        self.carry_out(Ended(lease, GONE))

    @rule()
    def terminate(self) -> None:
        self.carry_out(Terminate())

    @invariant()
    def holds_what_it_says(self) -> None:
        assert list(self.state.held) == ([] if self.run is None else [self.run])
        for held in self.state.held.values():
            assert held.stopping == self.stopped
            assert self.stopped or self.run in self.state.wanted
        assert self.state.over <= set(self.state.wanted)

    @invariant()
    def nothing_ordered_is_left_undone(self) -> None:
        if self.run is None and not self.state.leaving:
            assert set(self.state.wanted) == self.state.over


TestWorkerMachine = WorkerMachine.TestCase
TestWorkerMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
