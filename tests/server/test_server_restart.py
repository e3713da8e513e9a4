"""A server that is killed between any two of its decisions goes on as if it had not been. The time is the test's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine

from server_control import World
from server_specs import plan
from weft.api.agent import AgentKind, MetricReport, Report, SetDone, WorkerAllocation
from weft.api.event import Event, StateChanged
from weft.api.job import Job, Progress, Traffic
from weft.api.lifecycle import AllocationEvent, JobState
from weft_server.control.controller import Controller
from weft_server.control.instructions import Instruction, Remember, SetEnded
from weft_server.planning.plan import Given
from weft_server.refusals import NotKeeperError, UnknownError
from weft_server.storage.database import open_database
from weft_server.storage.records import Records, Submission

WORKER, SHARD = AgentKind.WORKER, AgentKind.SHARD
READY, RUNNING, DONE = AllocationEvent.READY, AllocationEvent.RUNNING, AllocationEvent.DONE
GIVEN = Given(names=["w"], file="f")


class Killed(World):
    """A world whose records are real, and whose server can be killed."""

    def __init__(self, engine: Engine) -> None:
        self.records = Records(engine)
        self.loses = False
        """Whether what is decided is lost before it is written."""
        self.batches: list[Sequence[Instruction]] = []
        super().__init__()
        self.controller.count_from(1)
        self.agents_there: list[str] = []

    def carry_out(self, instructions: Sequence[Instruction]) -> None:
        if not self.loses:
            self.batches.append(instructions)
            self.records.carry_out(instructions)

    def join(self) -> None:
        workers, shards = self.agents(workers=3, shards=2)
        self.agents_there = [*workers, *shards]

    def begin(self) -> None:
        """Submits the job, as the service does: the records have it before the controller."""
        job_plan = plan(workers=3, shards=2)
        job = Job(
            id="job",
            name="job",
            state=JobState.PENDING,
            progress=Progress(steps=job_plan.steps),
            workers=3,
            shards=2,
            created_at=self.now.at,
        )
        first = Event(seq=1, at=self.now.at, body=StateChanged(state=JobState.PENDING))
        self.records.add(Submission(job, "{}", job_plan, first, None, ""))
        self.carry_out(self.controller.submit(job, job_plan, 1, self.now))

    def restart(self) -> None:
        ids = iter(f"b{number}" for number in range(100))
        self.controller = Controller(self.limits, lambda: next(ids))
        self.controller.count_from(self.records.begin(self.now.at) << 32)
        self.controller.restore(self.records.agents(), self.records.unfinished(), self.now)
        self.settle()

    def settle(self) -> None:
        """A moment in which every agent is heard."""
        self.heard(*self.agents_there)
        self.carry_out(self.controller.tick(self.now))

    @property
    def log(self) -> list[Event]:
        return self.records.events("job", 0, 1000)


@dataclass(frozen=True)
class Fact:
    """Something that an agent brings; it comes again until it is answered."""

    kind: AgentKind
    place: int
    report: Report

    def bring(self, world: Killed) -> None:
        lease = f"job-{TERM}-{self.kind}-{self.place}"
        with suppress(UnknownError):  # of a job that has ended
            world.carry_out(world.controller.report(lease, self.report, world.now))


@dataclass(frozen=True)
class Final:
    """The keeper's parameters are in place."""

    def bring(self, world: Killed) -> None:
        run = world.controller.run_of("job")
        if run is not None:
            world.carry_out(world.controller.keep(run.keeper.id, run.keeper.term, 6, True, world.now))


@dataclass(frozen=True)
class Asked:
    """Somebody sets parameters. Whoever asks for a second time makes a second set."""

    def bring(self, world: Killed) -> None:
        run = world.controller.run_of("job")
        if run is not None and run.values.orders(run.keeper) == []:
            world.carry_out(world.controller.ask_set("job", GIVEN, world.now)[1])


STEP_S = 0.5
"""Exact in both clocks, so that rates are equal to the last bit."""
TERM = 1
"""Terms count placements, and this is the first job that is placed."""


def facts(last: AllocationEvent = DONE) -> Iterator[Fact | Final | Asked]:
    seqs: dict[tuple[AgentKind, int], int] = {}

    def fact(kind: AgentKind, place: int, event: AllocationEvent | None = None, **more: object) -> Fact:
        seqs[kind, place] = seqs.get((kind, place), 0) + 1
        if kind is SHARD:
            more["endpoint"] = f"tcp://shard-{place}:5000"
        return Fact(
            kind, place, Report.model_validate({"term": TERM, "seq": seqs[kind, place], "event": event, **more})
        )

    def metric(slot: int, step: int) -> MetricReport:
        return MetricReport(split="train", step=step, samples=2 + slot, sums={"loss": 0.1 * slot + step})

    yield from (fact(SHARD, place, READY) for place in range(2))
    yield from (fact(WORKER, slot, READY) for slot in range(3))
    yield from (fact(WORKER, slot, RUNNING) for slot in range(3))
    for step in (2, 4):
        for slot in (2, 0, 1):
            traffic = Traffic(sent_bytes=100 * step, received_bytes=10 * step)
            yield fact(WORKER, slot, step=step, metrics=[metric(slot, step)], traffic=traffic)
        if step == 2:
            yield Asked()
            yield fact(WORKER, 0, sets=[SetDone(number=1, step=3)])
    yield from (fact(WORKER, slot, last, step=6) for slot in (1, 2))
    yield Final()
    yield fact(WORKER, 0, last, step=6)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(tmp_path / "weft.db")
    yield engine
    engine.dispose()


def undisturbed(world: Killed, script: Sequence[Fact | Final | Asked]) -> list[Event]:
    world.join()
    world.begin()
    for each in script:
        world.seconds += STEP_S
        each.bring(world)
        world.settle()
    return world.log


def killed_at(moments: set[int], when: str, world: Killed, script: Sequence[Fact | Final | Asked]) -> list[Event]:
    """Kills the server at these facts: before their effects are written, before they are answered, or after."""
    world.join()
    world.begin()
    for moment, each in enumerate(script):
        world.seconds += STEP_S
        if moment in moments:
            world.loses = when == "unwritten"
            each.bring(world)
            world.loses = False
            world.restart()
        if moment not in moments or when != "answered":
            each.bring(world)
        world.settle()
    return world.log


@pytest.mark.parametrize("last", [DONE, AllocationEvent.FAILED])
@pytest.mark.parametrize("when", ["unwritten", "unanswered", "answered"])
def test_a_server_killed_at_every_fact_tells_the_same_story(tmp_path: Path, when: str, last: AllocationEvent) -> None:
    script = list(facts(last))
    engines = [open_database(tmp_path / f"{name}.db") for name in "ab"]
    try:
        plain, killed = Killed(engines[0]), Killed(engines[1])
        expected = undisturbed(plain, script)
        assert killed_at(set(range(len(script))), when, killed, script) == expected
        assert killed.records.job("job") == plain.records.job("job")
        assert expected[-1].body == StateChanged(
            state=JobState.SUCCEEDED if last is DONE else JobState.FAILED,
            reason=None if last is DONE else "worker-1 (worker 1) failed at step 6 of 6 and gave no reason",
        )
    finally:
        for engine in engines:
            engine.dispose()


def test_a_server_killed_at_one_fact_tells_the_same_story(tmp_path: Path) -> None:
    script = list(facts())
    plain = open_database(tmp_path / "plain.db")
    expected = undisturbed(Killed(plain), script)
    plain.dispose()
    for moment in range(len(script)):
        engine = open_database(tmp_path / f"{moment}.db")
        try:
            assert killed_at({moment}, "unanswered", Killed(engine), script) == expected
        finally:
            engine.dispose()


def test_the_story_differs_where_the_memory_is_not_written(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above would see it."""
    script = list(facts())
    world = Killed(engine)
    kept = Remember.__init__

    def forget(self: Remember, job: str, parts: dict[str, str | None]) -> None:
        kept(self, job, {name: text for name, text in parts.items() if not name.startswith("sum/")})

    monkeypatch.setattr(Remember, "__init__", forget)
    log = killed_at(set(range(len(script))), "answered", world, script)
    assert sum(event.body.kind == "metric" for event in log) == 0


def test_what_has_not_changed_is_not_written(engine: Engine) -> None:
    world = Killed(engine)
    script = list(facts())
    undisturbed(world, script[:8])
    world.batches.clear()
    for _ in range(5):
        world.settle()
    assert [each for batch in world.batches for each in batch] == []
    script[8].bring(world)
    (remembered,) = [each for batch in world.batches for each in batch if isinstance(each, Remember)]
    assert sorted(remembered.parts) == [f"lease/job-{TERM}-worker-2", "sum/train/2/2"]
    world.batches.clear()
    world.restart()
    assert not [each for batch in world.batches for each in batch]


def test_nothing_is_remembered_of_a_job_that_has_ended(engine: Engine) -> None:
    world = Killed(engine)
    undisturbed(world, list(facts()))
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM parts").scalar() == 0


def test_a_version_of_orders_never_comes_again_with_other_orders(engine: Engine) -> None:
    world = Killed(engine)
    world.join()
    known: dict[tuple[str, int], object] = {}
    world.begin()
    script = list(facts())
    for moment, each in enumerate(script):
        each.bring(world)
        for agent in world.agents_there:
            orders = world.orders(agent)
            told = known.setdefault((agent, orders.version), orders)
            assert told == orders
        if moment % 2:
            world.loses = True
            script[min(moment + 1, len(script) - 1)].bring(world)
            world.loses = False
            world.restart()


def test_agents_have_a_grace_after_the_start_and_are_lost_as_usual_then(engine: Engine) -> None:
    world = Killed(engine)
    undisturbed(world, list(facts())[:10])
    world.seconds += 1000
    heard = world.agents_there
    world.agents_there = [agent for agent in heard if agent != heard[1]]
    world.restart()
    alive = world.agents_there
    world.tick(14.9, alive=alive)
    job = world.records.job("job")
    assert job is not None
    assert job.state is JobState.RUNNING
    world.tick(0.4, alive=alive)
    job = world.records.job("job")
    assert job is not None
    assert job.state is JobState.FAILED
    assert job.reason == "worker-1 (worker 1) was lost: silent for 5.1 s, at step 0 of 6"


def test_a_pending_job_is_not_placed_on_agents_that_have_not_come_back(engine: Engine) -> None:
    world = Killed(engine)
    world.join()
    world.loses = True
    world.begin()
    world.loses = False
    away, world.agents_there = world.agents_there, []
    world.restart()
    job = world.records.job("job")
    assert job is not None
    assert (job.state, job.reason) == (JobState.PENDING, "needs 2 shards; 0 are registered, 2 more are silent")
    world.heard(*away)
    world.carry_out(world.controller.tick(world.now))
    started = world.records.job("job")
    assert started is not None
    assert started.state is JobState.STARTING


def test_deadlines_begin_anew(engine: Engine) -> None:
    world = Killed(engine)
    undisturbed(world, [])
    world.seconds += 50
    world.restart()
    world.tick(50, alive=world.agents_there)
    assert [each.state for each in [world.records.job("job")] if each] == [JobState.STARTING]
    world.tick(11, alive=world.agents_there)
    assert [each.state for each in [world.records.job("job")] if each] == [JobState.FAILED]


def test_a_lease_of_an_agent_that_the_records_lack_fails_the_job(engine: Engine) -> None:
    world = Killed(engine)
    undisturbed(world, list(facts())[:10])
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM agents WHERE id = 'a1'")
    world.agents_there.remove("a1")
    world.restart()
    job = world.records.job("job")
    assert job is not None
    assert job.reason == "worker-1 (worker 1) was lost: the server has no record of it, at step 0 of 6"


def test_an_open_set_is_still_ordered_after_a_restart_and_told_once(engine: Engine) -> None:
    world = Killed(engine)
    script = list(facts())
    undisturbed(world, script[:12])
    run = world.controller.run_of("job")
    assert run is not None
    keeper = run.keeper
    assert [order.number for order in world.orders(keeper.agent).sets] == [1]
    world.restart()
    assert [order.number for order in world.orders(keeper.agent).sets] == [1]
    job, given = world.controller.open_set(keeper.id, keeper.term, 1)
    assert (job, given) == ("job", GIVEN)
    world.batches.clear()
    script[12].bring(world)
    ended = [each for batch in world.batches for each in batch if isinstance(each, SetEnded)]
    assert [(each.done.number, each.done.step, each.file) for each in ended] == [(1, 3, "f")]
    with pytest.raises(NotKeeperError, match="set 1 of job job is done"):
        world.controller.open_set(keeper.id, keeper.term, 1)
    assert world.orders(keeper.agent).sets == []


def test_first_values_given_to_a_pending_job_outlive_the_server(engine: Engine) -> None:
    world = Killed(engine)
    world.begin()
    world.carry_out(world.controller.give("job", GIVEN, world.now))
    world.restart()
    world.join()
    world.settle()
    run = world.controller.run_of("job")
    assert run is not None
    for shard in range(2):
        world.report(world.lease(SHARD, shard), READY)
    keeper = run.leases.keeper
    assert keeper is not None
    (told,) = world.orders(keeper.agent).allocations
    assert isinstance(told, WorkerAllocation)
    assert told.given == ["w"]
    assert [key.initializer.op_type for key in told.store.keys] == ["Given"]
    others = [world.orders(lease.agent).allocations[0] for lease in run.leases.workers if lease is not keeper]
    assert all(isinstance(each, WorkerAllocation) and each.given == [] for each in others)
