"""What the controller has decided outlives records that refuse it for a while."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from server_running import DEADLINE_S, cast, eventually, running, state, submit
from server_specs import plan, save_rows, spec, spec_json
from weft.api.event import Event, LogLine
from weft.api.job import Job, Progress
from weft.api.lifecycle import AllocationEvent, JobState
from weft_server.control.clock import ProcessClock
from weft_server.control.instructions import Append, Close, Instruction, Order, Save
from weft_server.control.limits import Limits
from weft_server.refusals import UnknownError
from weft_server.service import Service
from weft_server.storage import journal
from weft_server.storage.database import open_database
from weft_server.storage.job_files import JobFiles
from weft_server.storage.journal import Journal
from weft_server.storage.records import Records, Submission
from weft_server.threads import FILE_THREADS

AT = datetime(2030, 1, 1, tzinfo=UTC)


class Refusing:
    """Records that take nothing while `full` is set."""

    def __init__(self) -> None:
        self.full = True
        self.tried = 0
        self.batches: list[list[Instruction]] = []
        self.told: list[list[Instruction]] = []
        self.going = asyncio.Event()
        self.going.set()

    async def write(self, batch: Sequence[Instruction]) -> None:
        self.tried += 1
        await self.going.wait()
        if self.full:
            raise OSError("no space left on device")
        self.batches.append(list(batch))

    async def kept(self, batch: Sequence[Instruction]) -> None:
        self.told.append(list(batch))


def line(seq: int) -> Append:
    return Append("a", Event(seq=seq, at=AT, body=LogLine(level="info", source="server", message=str(seq))))


def job(state: JobState) -> Job:
    return Job(id="a", name="a", state=state, progress=Progress(steps=1), workers=1, shards=1, created_at=AT)


def test_what_is_refused_is_written_first_when_it_can_be_and_in_order() -> None:
    async def scenario() -> None:
        records = Refusing()
        line_up = Journal(records.write, records.kept)
        await line_up.carry_out([line(1), Save(job(JobState.RUNNING)), Order("agent")])
        await line_up.carry_out([line(2), Save(job(JobState.FAILED)), Close("a", succeeded=False)])
        assert line_up.is_refused
        newest = line_up.newest("a")
        assert newest is not None
        assert newest.state is JobState.FAILED
        assert records.told == []
        records.full = False
        await line_up.flush()
        whole = [line(1), Save(job(JobState.RUNNING)), Order("agent")]
        whole += [line(2), Save(job(JobState.FAILED)), Close("a", succeeded=False)]
        assert records.batches == records.told == [whole]
        assert not line_up.is_refused
        assert line_up.newest("a") is None

    asyncio.run(scenario())


def test_after_a_refusal_the_records_are_left_alone_for_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FIRST_RETRY_S", 3600.0)
    monkeypatch.setattr(journal, "LONGEST_RETRY_S", 3600.0)

    async def scenario() -> None:
        records = Refusing()
        line_up = Journal(records.write, records.kept)
        for seq in range(1, 5):
            await line_up.carry_out([line(seq)])
        assert records.tried == 1
        await line_up.flush()
        assert records.tried == 2

    asyncio.run(scenario())


def test_a_caller_that_goes_away_stops_no_write_and_repeats_none() -> None:
    async def scenario() -> None:
        records = Refusing()
        records.full = False
        records.going.clear()
        line_up = Journal(records.write, records.kept)
        caller = asyncio.create_task(line_up.carry_out([line(1)]))
        while not records.tried:
            await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        records.going.set()
        await line_up.carry_out([line(2)])
        assert records.batches == [[line(1)], [line(2)]]

    asyncio.run(scenario())


def test_what_fails_after_the_records_have_a_batch_is_no_refusal() -> None:
    async def scenario() -> None:
        records = Refusing()
        records.full = False

        async def failing(_: Sequence[Instruction]) -> None:
            raise RuntimeError("a defect")

        line_up = Journal(records.write, failing)
        assert await line_up.carry_out([line(1)])
        assert await line_up.carry_out([line(2)])
        assert (records.batches, line_up.is_refused) == ([[line(1)], [line(2)]], False)

    asyncio.run(scenario())


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is set, the records of every server refuse to carry instructions out."""
    full = threading.Event()
    really = Records.carry_out

    def carry_out(self: Records, instructions: Sequence[Instruction]) -> None:
        if full.is_set():
            raise OperationalError("INSERT", {}, OSError("database or disk is full"))
        really(self, instructions)

    monkeypatch.setattr(Records, "carry_out", carry_out)
    return full


def test_a_job_that_ends_while_the_disk_is_full_has_ended_for_everybody(
    tmp_path: Path, full_disk: threading.Event
) -> None:
    document: dict[str, Any] = spec_json(save_rows(tmp_path / "rows.npz"))
    with running(tmp_path / "server") as client, cast(client, stop_at=AllocationEvent.RUNNING):
        id = submit(client, document).json()["id"]
        eventually(lambda: state(client, id) == "running", "the job runs")
        full_disk.set()
        for _ in range(2):
            cancelled = client.post(f"/v1/jobs/{id}/cancel")
            assert (cancelled.status_code, cancelled.json()["code"]) == (503, "records-unavailable")
            assert cancelled.headers["retry-after"] == "1"
        assert state(client, id) == "cancelled"
        unready = client.get("/readyz")
        assert (unready.status_code, unready.json()["code"]) == (503, "not-ready")
        assert "the records refuse" in unready.json()["detail"]
        page = client.get(f"/v1/jobs/{id}/events", params={"format": "json"}).json()
        assert not page["ended"], "a page of the log ends with the event that ends the job"
        full_disk.clear()
        eventually(lambda: client.get("/readyz").status_code == 200, "what was decided is written")
        cancelled = client.post(f"/v1/jobs/{id}/cancel")
        assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
        page = client.get(f"/v1/jobs/{id}/events", params={"format": "json"}).json()
        assert page["ended"]
        assert [each["seq"] for each in page["events"]] == list(range(1, len(page["events"]) + 1))
        assert page["events"][-1]["body"]["state"] == "cancelled"
        assert submit(client, document).status_code == 201


def test_what_was_decided_while_the_disk_was_full_outlives_the_server(
    tmp_path: Path, full_disk: threading.Event
) -> None:
    with running(tmp_path / "server") as client:
        id = submit(client, spec_json(save_rows(tmp_path / "rows.npz"))).json()["id"]
        full_disk.set()
        client.post(f"/v1/jobs/{id}/cancel")
        full_disk.clear()
    with running(tmp_path / "server") as client:
        assert state(client, id) == "cancelled"


def test_a_job_that_cannot_be_kept_is_refused_and_may_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(_self: Records, _submission: Submission) -> None:
        raise OperationalError("INSERT", {}, OSError("database is locked"))

    document = spec_json(save_rows(tmp_path / "rows.npz"))
    with running(tmp_path / "server") as client:
        with monkeypatch.context() as patched:
            patched.setattr(Records, "add", locked)
            refused = submit(client, document)
        assert (refused.status_code, refused.json()["code"]) == (503, "records-unavailable")
        assert "database is locked" in refused.json()["detail"]
        assert client.get("/v1/jobs").json()["jobs"] == []
        assert submit(client, document).status_code == 201


def test_slow_files_hold_up_no_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, entered = threading.Event(), threading.Semaphore(0)

    def slow(_self: JobFiles, _job: str) -> None:
        entered.release()
        release.wait(DEADLINE_S)

    document = spec_json(save_rows(tmp_path / "rows.npz"))
    with running(tmp_path / "server") as client:
        id = submit(client, document).json()["id"]
        monkeypatch.setattr(JobFiles, "final", slow)
        asking = [threading.Thread(target=client.get, args=(f"/v1/jobs/{id}/values",)) for _ in range(FILE_THREADS)]
        try:
            for thread in asking:
                thread.start()
            for _ in asking:
                assert entered.acquire(timeout=DEADLINE_S)
            assert client.get("/readyz").status_code == 200
            assert client.get("/v1/jobs").status_code == 200
        finally:
            release.set()
            for thread in asking:
                thread.join(DEADLINE_S)


def test_a_job_whose_submitter_has_gone_away_is_handed_over_and_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, go_on = threading.Event(), threading.Event()
    add = Records.add

    def slow(records: Records, submission: Submission) -> None:
        add(records, submission)
        kept.set()
        go_on.wait(DEADLINE_S)

    monkeypatch.setattr(Records, "add", slow)
    job_plan, job_spec = plan(), spec(save_rows(tmp_path / "rows.npz"))

    async def story(service: Service) -> None:
        await service.start()
        submitting = asyncio.create_task(
            service.submit("job", job_spec.model_dump_json(), job_plan, project="default", key=None, digest="")
        )
        await asyncio.to_thread(kept.wait, DEADLINE_S)
        submitting.cancel()
        cancelling = asyncio.create_task(service.cancel("job", why="by alice"))
        await asyncio.wait([submitting])
        go_on.set()
        assert (await cancelling).state is JobState.CANCELLED
        assert (await service.cancel("job", why="by alice")).state is JobState.CANCELLED
        with pytest.raises(UnknownError):
            await service.cancel("none", why="by alice")
        await service.stop()

    engine = open_database(tmp_path / "weft.db")
    try:
        asyncio.run(story(Service(Records(engine), JobFiles(tmp_path / "files"), Limits(), ProcessClock())))
    finally:
        engine.dispose()


def test_a_state_is_told_once_its_event_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, go_on = threading.Event(), threading.Event()
    carry_out = Records.carry_out

    def slow(records: Records, instructions: Sequence[Instruction]) -> None:
        if any(isinstance(each, Close) for each in instructions):
            writing.set()
            go_on.wait(DEADLINE_S)
        carry_out(records, instructions)

    monkeypatch.setattr(Records, "carry_out", slow)
    job_plan, job_spec = plan(), spec(save_rows(tmp_path / "rows.npz"))

    async def story(service: Service) -> None:
        await service.start()
        await service.submit("job", job_spec.model_dump_json(), job_plan, project="default", key=None, digest="")
        cancelling = asyncio.create_task(service.cancel("job", why="by alice"))
        await asyncio.to_thread(writing.wait, DEADLINE_S)
        asking = asyncio.create_task(service.job("job"))
        done, _ = await asyncio.wait([asking], timeout=0.1)
        assert not done, "the job's end is not in its log yet"
        go_on.set()
        assert (await asking).state is JobState.CANCELLED
        assert (await cancelling).state is JobState.CANCELLED
        await service.stop()

    engine = open_database(tmp_path / "weft.db")
    try:
        asyncio.run(story(Service(Records(engine), JobFiles(tmp_path / "files"), Limits(), ProcessClock())))
    finally:
        engine.dispose()
