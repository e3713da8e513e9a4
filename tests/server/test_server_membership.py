"""An agent's membership and reports, against the server that they are for and against a network that fails."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from server_running import DEADLINE_S, Actor, eventually, parameters, running, state, submit
from server_specs import save_rows, spec_json
from weft.agent.membership import Membership
from weft.agent.reporter import MOST_LINES, Reporter, UploadError
from weft.api.agent import AgentKind, Heartbeat, LogReport, MetricReport, Orders, Registration, SetDone, SnapshotDone
from weft.api.lifecycle import AllocationEvent
from weft.api.trace import ProcessTrace, Span
from weft_server.control.clock import ProcessClock
from weft_server.control.limits import Limits
from weft_server.service import Service
from weft_server.storage.database import open_database
from weft_server.storage.job_files import JobFiles
from weft_server.storage.records import Records

REGISTERED = {"id": "a1", "heartbeat_interval_s": 0.05, "lost_after_s": 1.0}
UNKNOWN = {
    "type": "/problems/unknown-agent",
    "title": "Unknown agent",
    "status": 404,
    "detail": "there is no agent",
    "code": "unknown-agent",
}


class Log:
    """A holder that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Orders | str] = []

    def hold(self, orders: Orders) -> None:
        self.told.append(orders)

    def lost(self) -> None:
        self.told.append("lost")


class Play:
    """A server whose answers are scripted: each path's newest answer is given again and again."""

    def __init__(self, **answers: Callable[[httpx.Request], httpx.Response]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []
        self.lock = threading.Lock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rsplit("/", 1)[-1]
        with self.lock:
            content = request.read()
            body = json.loads(content) if content[:1] == b"{" else content
            self.asked.append((f"{request.method} {request.url.path}", body))
        return self.answers.get(name, lambda _: httpx.Response(204))(request)

    def bodies(self, ending: str) -> list[Any]:
        with self.lock:
            return [body for path, body in self.asked if path.endswith(ending)]


def answer(status: int, document: Any = None) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _: httpx.Response(status, json=document)


def refuse(_request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("nobody listens")


@pytest.fixture
def member() -> Iterator[Callable[[Play, Log], Membership]]:
    stop = threading.Event()
    threads: list[threading.Thread] = []
    members: list[Membership] = []

    def join(play: Play, log: Log) -> Membership:
        registration = Registration(kind=AgentKind.WORKER, name="worker-0", pid=1)
        membership = Membership("http://server", registration, log, transport=httpx.MockTransport(play))
        thread = threading.Thread(target=membership.run, args=(stop,))
        thread.start()
        threads.append(thread)
        members.append(membership)
        return membership

    yield join
    stop.set()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    for membership in members:
        membership.close()


def test_an_agent_registers_again_when_the_server_does_not_know_it_any_more(tmp_path: Path) -> None:
    with running(tmp_path / "server") as client:
        actor = Actor(client, AgentKind.WORKER, "worker-0")
        eventually(lambda: actor.orders, "the agent gets its first orders")
        agent = client.get("/v1/agents").json()["agents"][0]["id"]
        client.delete(f"/v1/agents/{agent}")
        eventually(lambda: actor.lost_times == 1 and len(actor.orders) == 2, "it has dropped all and registered again")
        actor.end()
        assert [each["state"] for each in client.get("/v1/agents").json()["agents"]] == ["lost", "lost"]


def test_a_heartbeat_that_finds_nothing_changed_brings_nothing(tmp_path: Path) -> None:
    """A job's programs travel once to each agent, however long it trains."""
    with running(tmp_path / "server") as client:
        registered = client.post("/v1/agents", json={"kind": "worker", "name": "worker-0", "pid": 1}).json()
        path, minimal = f"/v1/agents/{registered['id']}/heartbeat", {"Prefer": "return=minimal"}
        first = client.post(path, json={}, headers=minimal)
        known = {"known": first.json()["version"]}
        idle = client.post(path, json=known, headers=minimal)
        assert (first.status_code, idle.status_code, idle.content) == (200, 204, b"")
        before = client.post(path, json=known)  # an agent of the release before
        assert before.json() == first.json()


def test_an_agent_goes_on_after_answers_without_content(member: Callable[[Play, Log], Membership]) -> None:
    orders = {"version": 3, "allocations": [], "upload": ["x"]}

    def beat(request: httpx.Request) -> httpx.Response:
        assert request.headers["Prefer"] == "return=minimal"
        is_known = json.loads(request.content)["known"] == 3
        return httpx.Response(204) if is_known else httpx.Response(200, json=orders)

    play, log = Play(agents=answer(201, REGISTERED), heartbeat=beat), Log()
    member(play, log)
    eventually(lambda: len(play.bodies("/heartbeat")) > 3, "it calls again after an answer without content")
    assert [each.version for each in log.told if isinstance(each, Orders)] == [3]


def test_an_agent_whose_connection_ends_is_not_waited_for_and_one_that_only_stands_still_is(tmp_path: Path) -> None:
    """What the system does for a process that was killed, and for one that was stopped."""
    with running(tmp_path / "server", suspected_after_s=1.0, lost_after_s=60.0) as client, ExitStack() as open_:

        def call(name: str) -> socket.socket:
            registered = client.post("/v1/agents", json={"kind": "worker", "name": name, "pid": 1}).json()
            path = f"/v1/agents/{registered['id']}/heartbeat"
            body = {"known": client.post(path, json={}).json()["version"], "wait_s": 0.5}
            request = client.build_request("POST", path, json=body)
            head = "".join(f"{header}: {value}\r\n" for header, value in request.headers.items())
            connection = socket.create_connection((client.base_url.host, client.base_url.port or 0))
            connection.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + request.content)
            return open_.enter_context(connection)

        def states() -> dict[str, str]:
            return {each["name"]: each["state"] for each in client.get("/v1/agents").json()["agents"]}

        killed, _still = call("killed"), call("still")
        killed.close()
        eventually(lambda: states() == {"killed": "lost", "still": "suspected"}, "one is lost, and one is waited for")


def test_an_agent_keeps_what_it_holds_while_the_server_cannot_be_reached(
    member: Callable[[Play, Log], Membership],
) -> None:
    orders = {"version": 3, "allocations": [], "upload": ["x"]}
    play, log = Play(agents=answer(201, REGISTERED), heartbeat=answer(200, orders)), Log()
    member(play, log)
    eventually(lambda: len(log.told) == 1, "the first orders are held")
    play.answers["heartbeat"] = refuse
    asked = len(play.bodies("heartbeat"))
    eventually(lambda: len(play.bodies("heartbeat")) > asked + 3, "it has tried again a few times")
    play.answers["heartbeat"] = answer(200, {**orders, "version": 4})
    eventually(lambda: len(log.told) == 2, "the next orders are held")
    assert "lost" not in log.told
    assert [body["known"] for body in play.bodies("heartbeat")][:2] == [0, 3]


@pytest.mark.parametrize("answered", [404, 500, 502, 401])
def test_a_wrong_answer_that_does_not_disown_the_agent_drops_nothing(
    member: Callable[[Play, Log], Membership], answered: int
) -> None:
    """A proxy's 404 page is not the server's word."""
    play, log = Play(agents=answer(201, REGISTERED), heartbeat=lambda _: httpx.Response(answered, text="<html>")), Log()
    member(play, log)
    eventually(lambda: len(play.bodies("heartbeat")) > 2, "it has tried again")
    assert log.told == []
    play.answers["heartbeat"] = answer(404, UNKNOWN)
    eventually(lambda: "lost" in log.told, "the server's own word drops everything")


def test_registering_is_tried_until_the_server_is_there(member: Callable[[Play, Log], Membership]) -> None:
    play, log = Play(agents=refuse, heartbeat=answer(200, {"version": 1, "allocations": []})), Log()
    member(play, log)
    eventually(lambda: len(play.bodies("/v1/agents")) > 2, "it has tried again")
    play.answers["agents"] = answer(201, REGISTERED)
    eventually(lambda: len(log.told) == 1, "the first orders are held")


def test_orders_are_held_once_however_often_they_are_told(member: Callable[[Play, Log], Membership]) -> None:
    orders = {"version": 1, "allocations": []}
    play, log = Play(agents=answer(201, REGISTERED), heartbeat=answer(200, orders)), Log()
    member(play, log)
    eventually(lambda: len(play.bodies("heartbeat")) > 5, "several heartbeats were answered")
    assert len(log.told) == 1


def reporter(play: Play) -> Reporter:
    return Reporter(httpx.Client(base_url="http://server", transport=httpx.MockTransport(play)), "lease", 7)


def metric(step: int) -> MetricReport:
    return MetricReport(split="train", step=step, samples=1, sums={"loss": 1.0})


def test_facts_come_in_order_nothing_but_older_steps_is_left_out() -> None:
    gate = threading.Event()

    def held(_request: httpx.Request) -> httpx.Response:
        gate.wait(DEADLINE_S)
        return httpx.Response(204)

    play = Play(reports=held)
    each = reporter(play)
    each.report(event=AllocationEvent.READY)
    for step in range(50):
        each.report(step=step, metrics=[metric(step)], logs=[LogReport(level="info", message=str(step))])
    each.report(event=AllocationEvent.DONE)
    gate.set()
    assert each.flush(DEADLINE_S)
    each.close()
    sent = play.bodies("/reports")
    assert [body["seq"] for body in sent] == list(range(1, len(sent) + 1))
    assert {body["term"] for body in sent} == {7}
    assert [body["event"] for body in sent if body["event"]] == ["ready", "done"]
    assert sent[-1]["event"] == "done"
    assert [line["step"] for body in sent for line in body["metrics"]] == list(range(50))
    assert [line["message"] for body in sent for line in body["logs"]] == [str(step) for step in range(50)]
    assert len(sent) < 10
    assert sent[-1]["step"] == 49


@pytest.mark.parametrize(
    "facts",
    [
        {"event": AllocationEvent.RUNNING},
        {"snapshot": SnapshotDone(step=1, missed=True, error="late")},
        {"sets": [SetDone(number=1, step=1)]},
    ],
    ids=lambda facts: next(iter(facts)),
)
def test_what_somebody_waits_for_goes_at_once_and_takes_along_what_nobody_does(
    facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.agent.reporter.INTERVAL_S", 1e6)
    play = Play()
    each = reporter(play)
    each.report(event=AllocationEvent.READY)
    assert each.flush(DEADLINE_S)
    each.report(step=1)
    each.report(**facts)
    assert each.flush(DEADLINE_S)
    each.close()
    assert [body["step"] for body in play.bodies("/reports")] == [None, 1]


def traced(step: int) -> ProcessTrace:
    spans = [Span("compute", 0, 0, step, -1, 0, 1)]
    return ProcessTrace(
        kind="worker", place=0, host="h", pid=1, start_us=1, peak_bytes=1, names=["s"], threads=["t"], spans=spans
    )


def test_a_part_of_a_trace_goes_with_the_next_report_each_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.agent.reporter.INTERVAL_S", 1e6)
    play = Play()
    each = reporter(play)
    each.report(event=AllocationEvent.READY)
    assert each.flush(DEADLINE_S)
    each.report(trace=traced(1))
    each.report(trace=traced(2))
    each.report(step=2)
    each.report(event=AllocationEvent.DONE)
    assert each.flush(DEADLINE_S)
    each.close()
    _, first, second = play.bodies("/reports")
    assert [body["trace"]["spans"][0][3] for body in (first, second)] == [1, 2]
    assert [(body["step"], body["event"]) for body in (first, second)] == [(None, None), (2, "done")]


def test_a_report_is_sent_until_it_is_taken_always_the_same() -> None:
    answers = iter([500, 503, 401, 429])

    def failing(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(next(answers, 204))

    play = Play(reports=failing)
    each = reporter(play)
    each.report(event=AllocationEvent.READY)
    assert each.flush(DEADLINE_S)
    each.close()
    sent = play.bodies("/reports")
    assert len(sent) == 5
    assert all(body == sent[0] for body in sent)


@pytest.mark.parametrize("status", [404, 409])
def test_nothing_more_is_sent_about_an_allocation_that_is_gone(status: int) -> None:
    play = Play(reports=answer(status, UNKNOWN))
    each = reporter(play)
    each.report(event=AllocationEvent.READY)
    assert each.flush(DEADLINE_S)
    each.report(event=AllocationEvent.RUNNING)
    assert each.flush(DEADLINE_S)
    each.close()
    assert len(play.bodies("/reports")) == 1


def test_flush_tells_that_something_is_still_waiting() -> None:
    play = Play(reports=refuse)
    each = reporter(play)
    each.report(step=1)
    assert not each.flush(0.05)
    each.close()
    assert each.flush(DEADLINE_S), "what is dropped is not waited for"


def test_a_post_is_bounded_however_much_has_piled_up() -> None:
    gate = threading.Event()

    def held(_request: httpx.Request) -> httpx.Response:
        gate.wait(DEADLINE_S)
        return httpx.Response(204)

    play = Play(reports=held)
    each = reporter(play)
    for step in range(3 * MOST_LINES):
        each.report(metrics=[metric(step)])
    gate.set()
    assert each.flush(DEADLINE_S)
    each.close()
    sent = play.bodies("/reports")
    assert max(len(body["metrics"]) for body in sent) <= MOST_LINES
    assert sum(len(body["metrics"]) for body in sent) == 3 * MOST_LINES


def test_an_upload_is_tried_again_and_a_refused_one_says_why() -> None:
    answers = iter([500])

    def failing(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(next(answers, 204))

    play = Play(parameters=failing)
    each = reporter(play)
    each.upload(b"document", 3, True)
    assert play.bodies("/parameters") == [b"document", b"document"]
    play.answers["parameters"] = lambda _: httpx.Response(409, text="stale-term")
    with pytest.raises(UploadError, match="step 3 were refused: 409 stale-term"):
        each.upload(b"document", 3, True)
    play.answers["parameters"] = refuse
    with pytest.raises(UploadError, match=r"not taken within 0\.2 s: ConnectError: nobody listens"):
        each.upload(b"document", 3, True, deadline_s=0.2)
    each.close()


def test_closing_ends_an_upload_that_is_tried_again() -> None:
    play, failed = Play(parameters=refuse), []
    each = reporter(play)

    def upload() -> None:
        with pytest.raises(UploadError, match="not taken before the allocation was given up: ConnectError"):
            each.upload(b"document", 3, False)
        failed.append(True)

    bringing = threading.Thread(target=upload)
    bringing.start()
    eventually(lambda: len(play.bodies("/parameters")) > 1, "the upload is tried again")
    each.close()
    bringing.join(DEADLINE_S)
    assert failed == [True]


def test_reports_of_a_run_reach_the_servers_log(tmp_path: Path) -> None:
    document = spec_json(save_rows(tmp_path / "rows.npz"), parallelism={"workers": 1, "shards": 1})
    with running(tmp_path / "server") as client:
        shard = Actor(client, AgentKind.SHARD, "shard-0")
        worker = Actor(client, AgentKind.WORKER, "worker-0", AllocationEvent.RUNNING)
        job = submit(client, document).json()["id"]
        eventually(lambda: state(client, job) == "running", "the job runs")
        (mine,) = worker.reporters.values()
        mine.report(step=3, logs=[LogReport(level="warning", message="slow")])
        mine.upload(parameters(3), 3, False)
        mine.report(trace=traced(3))
        mine.report(event=AllocationEvent.FAILED, reason="enough")
        eventually(lambda: state(client, job) == "failed", "the job fails")
        (told,) = client.get(f"/v1/jobs/{job}/trace").json()["processes"]
        assert told == traced(3).model_dump(mode="json")
        shown = client.get(f"/v1/jobs/{job}/events", params={"format": "json"}).json()["events"]
        assert shown[-1]["body"]["reason"] == "worker-0 (worker 0) failed at step 4 of 6: enough"
        lines = [each["body"] for each in shown if each["body"]["kind"] == "log"]
        assert lines[-1] == {"kind": "log", "level": "warning", "source": "worker 0", "message": "slow"}
        shard.end()
        worker.end()


def test_agents_that_end_with_their_cluster_cost_a_job_none_of_its_restarts(tmp_path: Path) -> None:
    one = {"workers": 1, "shards": 1}
    document = spec_json(save_rows(tmp_path / "rows.npz"), max_restarts=1, parallelism=one)
    with running(tmp_path / "server") as client:
        job = submit(client, document).json()["id"]
        for _ in range(3):
            shard = Actor(client, AgentKind.SHARD, "shard-0")
            worker = Actor(client, AgentKind.WORKER, "worker-0", AllocationEvent.RUNNING)
            eventually(lambda: state(client, job) == "running", "the job runs")
            worker.end()
            shard.end()
            told = client.get(f"/v1/jobs/{job}").json()
            assert (told["state"], told["restarts"]) == ("recovering", 0), told["reason"]


def test_a_newer_heartbeat_answers_the_one_that_waits(tmp_path: Path) -> None:
    async def there() -> bool:
        return False

    async def story(service: Service) -> None:
        await service.start()
        agent = (await service.register(Registration(kind=AgentKind.WORKER, name="worker-0", pid=1))).id
        version = (await service.heartbeat(agent, Heartbeat(), there)).version
        waits = Heartbeat.model_construct(known=version, wait_s=1e6)
        calls = [asyncio.create_task(service.heartbeat(agent, waits.model_copy(), there)) for _ in range(80)]
        *older, newest = calls
        answers = await asyncio.wait_for(asyncio.gather(*older), DEADLINE_S)
        assert {each.version for each in answers} == {version}
        assert not newest.done()
        service.begin_closing()
        assert (await newest).version == version
        await service.stop()

    engine = open_database(tmp_path / "weft.db")
    try:
        limits = Limits(lost_after_s=1e7)
        asyncio.run(story(Service(Records(engine), JobFiles(tmp_path / "files"), limits, ProcessClock())))
    finally:
        engine.dispose()
