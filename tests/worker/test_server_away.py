"""A server that is away, for a restart: what is told waits in line, what is brought comes again, no run stops."""

from __future__ import annotations

import errno
import io
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from plain_store import PlainCluster
from weft.agent.membership import Membership
from weft.agent.reporter import Reporter
from weft.agent.retry import Verdict, verdict
from weft.agent.transfer import DEADLINE_S, Document, DownloadError, Transfer, UploadError
from weft.api.agent import AgentKind, LogReport, MetricReport, Orders, Registration, SetDone, SnapshotDone
from weft.api.job import Traffic
from weft.api.lifecycle import AllocationEvent
from weft.http import Retry
from weft_worker.run import Run
from weft_worker.settings import RunSettings
from worker_graphs import CLASSES, FEATURES, HIDDEN, mlp
from worker_jobs import WAIT_S, Clock, Job, Records, programs_of, save_data

DONE = AllocationEvent.DONE
UNKNOWN = {"type": "/problems/x", "title": "x", "status": 404, "detail": "x", "code": "unknown-allocation"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries come soon after each other."""
    monkeypatch.setattr("weft.agent.retry.PAUSES", Retry(first_s=0.001, longest_s=1.0))


Answer = Callable[[httpx.Request], httpx.Response]


class Server:
    """A server behind a transport. While `away` has answers, they are given, one after the other, instead of its own.

    It takes reports as the real one does: a number that it has seen changes nothing.
    """

    def __init__(self, *away: Answer) -> None:
        self.away = list(away)
        self.calls: list[tuple[str, str, bytes]] = []
        self.taken: dict[int, dict[str, Any]] = {}
        self.order: list[int] = []
        self.documents: dict[str, bytes] = {}
        self.answer: Answer | None = None
        self.lock = threading.Lock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = request.read()
        with self.lock:
            self.calls.append((request.method, request.url.path, body))
            answer = self.away.pop(0) if self.away else (self.answer or self._own)
        return answer(request)

    def _own(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.split("/", 4)[-1]
        if request.method == "GET":
            return httpx.Response(200, content=self.documents[name])
        if name == "reports":
            self.take(request)
        return httpx.Response(204)

    def take(self, request: httpx.Request) -> None:
        report = json.loads(request.read())
        if report["seq"] not in self.taken:
            self.taken[report["seq"]] = report
            self.order.append(report["seq"])

    def facts(self, name: str) -> list[Any]:
        return [each for seq in self.order for each in self.taken[seq][name]]


def refused(_request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused")


def lost(_request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("connection reset")


def answered(status: int, body: object = "<html>nobody is here</html>") -> Answer:
    content = body if isinstance(body, str) else json.dumps(body)
    return lambda _: httpx.Response(status, text=content)


AWAY: tuple[Answer, ...] = (refused, lost, answered(503), answered(502), answered(404), answered(500))


def reporter(server: Server) -> Reporter:
    return Reporter(httpx.Client(base_url="http://server", transport=httpx.MockTransport(server)), "lease", 7)


def tell_everything(each: Reporter, count: int) -> None:
    each.report(event=AllocationEvent.READY)
    each.report(event=AllocationEvent.RUNNING)
    for step in range(count):
        metric = MetricReport(split="train", step=step, samples=1, sums={"loss": 1.0})
        each.report(step=step, metrics=[metric], logs=[LogReport(level="info", message=str(step))])
        each.report(traffic=Traffic(sent_bytes=step, received_bytes=step), sets=[SetDone(number=step, step=step)])
    each.report(event=DONE)


@pytest.mark.parametrize("way", AWAY, ids=["refused", "reset", "503", "502", "a proxy's 404", "500"])
def test_reports_wait_in_order_and_none_is_lost_or_doubled(way):
    server = Server(*[way] * 4)
    each = reporter(server)
    tell_everything(each, 200)
    assert each.flush(WAIT_S)
    each.close()
    assert server.order == list(range(1, len(server.order) + 1))
    assert [line["step"] for line in server.facts("metrics")] == list(range(200))
    assert [line["message"] for line in server.facts("logs")] == [str(step) for step in range(200)]
    assert [done["number"] for done in server.facts("sets")] == list(range(200))
    events = [server.taken[seq]["event"] for seq in server.order]
    assert [event for event in events if event] == ["ready", "running", "done"]
    traffic = [server.taken[seq]["traffic"]["sent_bytes"] for seq in server.order if server.taken[seq]["traffic"]]
    assert traffic == sorted(traffic)
    assert traffic[-1] == 199


def test_a_report_that_was_taken_and_not_answered_comes_again_under_its_number():
    server = Server()

    def taken_and_lost(request: httpx.Request) -> httpx.Response:
        server.take(request)
        raise httpx.ReadError("the server died with the answer")

    server.away = [taken_and_lost]
    each = reporter(server)
    tell_everything(each, 5)
    assert each.flush(WAIT_S)
    each.close()
    bodies = [body for _, _, body in server.calls]
    assert bodies[0] == bodies[1]
    assert [line["step"] for line in server.facts("metrics")] == list(range(5))


@pytest.mark.parametrize("status", [404, 409])
def test_only_the_servers_own_word_ends_what_is_told(status):
    server = Server(answered(503), answered(status, UNKNOWN))
    each = reporter(server)
    each.report(event=AllocationEvent.READY)
    assert each.flush(WAIT_S)
    each.report(event=AllocationEvent.RUNNING)
    assert each.flush(WAIT_S)
    each.close()
    assert len(server.calls) == 2


@pytest.mark.parametrize("status", [400, 403, 405, 413, 415, 422])
@pytest.mark.parametrize(
    "facts",
    [
        {"event": AllocationEvent.READY},
        {"sets": [SetDone(number=1, step=1)]},
        {"snapshot": SnapshotDone(step=1, error="no")},
        {"metrics": [MetricReport(split="train", step=1, samples=1, sums={})]},
    ],
    ids=lambda facts: next(iter(facts)),
)
def test_what_the_server_waits_for_and_refuses_fails_the_allocation(status, facts):
    server = Server(answered(503), answered(status))
    each = reporter(server)
    each.report(**facts)
    assert each.flush(WAIT_S)
    each.close()
    (told,) = server.taken.values()
    assert (told["event"], told["lost"]) == ("failed", False)
    assert told["reason"].startswith(f"the server refused a report of this process, {status}: <html>")
    assert len(server.calls) == 3


def test_what_the_job_does_without_is_refused_once_and_told_in_its_log():
    server = Server(answered(422))
    each = reporter(server)
    each.report(step=3)
    assert each.flush(WAIT_S)
    server.away = [answered(422)] * 2
    each.report(logs=[LogReport(level="info", message="a line")])
    assert each.flush(WAIT_S)
    each.report(event=AllocationEvent.FAILED, reason="enough")
    assert each.flush(WAIT_S)
    each.close()
    assert [told["event"] for told in server.taken.values()] == [None, None]
    assert [line["level"] for line in server.facts("logs")] == ["warning", "warning"]
    assert len(server.calls) == 5


TAKEN, AGAIN, REFUSED, UNWANTED = Verdict
VERDICTS: Mapping[Verdict, tuple[int, ...]] = {
    TAKEN: (200, 201, 204, 299),
    AGAIN: (301, 302, 304, 307, 308, 401, 408, 425, 429, 500, 501, 502, 503, 504, 507, 599),
    REFUSED: (400, 402, 403, 405, 406, 410, 411, 412, 413, 415, 418, 422, 428, 431, 451, 499),
    UNWANTED: (404, 409),
}


@pytest.mark.parametrize(
    ("status", "means"), [(status, means) for means, statuses in VERDICTS.items() for status in statuses]
)
def test_what_each_class_of_answers_means(status, means):
    assert verdict(httpx.Response(status, json=UNKNOWN)) is means
    page = httpx.Response(status, text="<html>nobody is here</html>")
    assert verdict(page) is (AGAIN if status == 404 else means)


@pytest.mark.parametrize("status", [403, 405, 415, 409, 422])
def test_an_upload_that_would_be_refused_again_is_not_brought_again(status):
    server, answers = Server(), [answered(503), answered(status, "no")]
    server.answer = lambda request: (answers.pop(0) if request.method == "PUT" else server._own)(request)
    each = reporter(server)
    with pytest.raises(UploadError, match=f"parameters of step 3 were refused: {status} no"):
        each.upload(b"document", 3, True)
    each.close()
    assert len([method for method, _, _ in server.calls if method == "PUT"]) == 2


class Holder:
    def __init__(self) -> None:
        self.told: list[Orders | str] = []
        self.changed = threading.Condition()

    def hold(self, orders: Orders) -> None:
        self._tell(orders)

    def lost(self) -> None:
        self._tell("lost")

    def _tell(self, what: Orders | str) -> None:
        with self.changed:
            self.told.append(what)
            self.changed.notify_all()

    def heard(self, count: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(self.told) >= count, WAIT_S)


@pytest.mark.parametrize("way", AWAY, ids=["refused", "reset", "503", "502", "a proxy's 404", "500"])
def test_heartbeats_go_on_and_nothing_is_dropped(way):
    """After its restart the server says anew what is to be held."""
    versions: list[dict[str, Any]] = [{"version": 1, "allocations": [], "upload": ["a"]}]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/agents"):
            return httpx.Response(201, json={"id": "a1", "heartbeat_interval_s": 0.01, "lost_after_s": 1.0})
        return httpx.Response(200, json=versions[-1])

    server, holder, stop = Server(), Holder(), threading.Event()
    server.answer = answer
    registration = Registration(kind=AgentKind.WORKER, name="worker-0", pid=1)
    member = Membership("http://server", registration, holder, transport=httpx.MockTransport(server))
    thread = threading.Thread(target=member.run, args=(stop,))
    thread.start()
    try:
        assert holder.heard(1)
        with server.lock:
            server.away = [way] * 4
        versions.append({"version": 1 << 32, "allocations": [], "upload": ["b"]})
        assert holder.heard(2)
    finally:
        stop.set()
        thread.join(WAIT_S)
        member.close()
    assert [orders.upload for orders in holder.told] == [["a"], ["b"]]
    assert len([path for _, path, _ in server.calls if path == "/v1/agents"]) == 1


def counted_document(pieces: list[bytes]) -> tuple[Document, list[int]]:
    begun: list[int] = []

    def make() -> Iterator[bytes]:
        begun.append(len(begun))
        yield from pieces

    return Document(sum(map(len, pieces)), make), begun


def test_an_upload_begins_anew_until_it_is_taken_and_says_what_it_waits_for():
    server, away = Server(), [refused, lost, answered(503), answered(404), answered(507)]

    def answer(request: httpx.Request) -> httpx.Response:
        return away.pop(0)(request) if request.method == "PUT" and away else server._own(request)

    server.answer = answer
    each = reporter(server)
    document, begun = counted_document([b"head", b"a" * 1000, b"b" * 1000])
    each.upload(document, 3, True)
    assert each.flush(WAIT_S)
    each.close()
    uploads = [body for method, _, body in server.calls if method == "PUT"]
    assert uploads == [b"head" + b"a" * 1000 + b"b" * 1000] * len(uploads)
    assert len(begun) == len(uploads) == 6
    (line,) = server.facts("logs")
    assert line["level"] == "warning"
    assert "the parameters of step 3: not yet, it is tried again" in line["message"]


def test_what_became_of_a_snapshot_is_a_report_of_its_own():
    server = Server()
    each = reporter(server)
    for step in (10, 20):
        each.report(snapshot=SnapshotDone(step=step, error="no space"))
        each.report(step=step)
    assert each.flush(WAIT_S)
    each.close()
    told = [server.taken[seq].get("snapshot") for seq in server.order]
    assert [snapshot["step"] for snapshot in told if snapshot is not None] == [10, 20]


def test_what_fails_while_the_document_is_made_is_not_tried_again():
    server = Server()
    each = reporter(server)
    begun: list[int] = []

    def broken() -> Iterator[bytes]:
        begun.append(1)
        yield b"head"
        raise RuntimeError("shard 1 is silent")

    with pytest.raises(RuntimeError, match="shard 1 is silent"):
        each.upload(Document(100, broken), 3, True)
    each.close()
    assert begun == [1]


def test_an_upload_waits_longer_than_a_restart_takes_and_not_for_ever():
    assert DEADLINE_S >= 60
    server = Server()
    server.answer = refused
    each = reporter(server)
    with pytest.raises(UploadError, match=r"not taken within 0\.2 s: ConnectError: connection refused"):
        each.upload(b"document", 3, True, deadline_s=0.2)
    each.close()


def breaking(content: bytes) -> Answer:
    """Says that it sends more than it does."""

    def stream() -> Iterator[bytes]:
        yield content
        raise httpx.ReadError("connection reset")

    return lambda _: httpx.Response(200, content=stream())


def test_a_document_that_broke_off_is_fetched_from_its_beginning():
    server = Server(refused, breaking(b"half of a longer document than the whole"), answered(503))
    server.documents["given"] = b"the whole document"
    each, file = reporter(server), io.BytesIO()
    each.download("given", file, threading.Event())
    each.close()
    assert file.getvalue() == b"the whole document"


def test_a_document_that_the_server_refuses_is_not_asked_for_again():
    server = Server(answered(404, UNKNOWN))
    each = reporter(server)
    with pytest.raises(DownloadError, match="sets/3: the server refused the document: 404"):
        each.download("sets/3", io.BytesIO(), threading.Event())
    each.close()
    assert len(server.calls) == 1


class FullDisk(io.BytesIO):
    """Has room once it was written to a few times."""

    def __init__(self, refusals: float) -> None:
        super().__init__()
        self.refusals = refusals

    def write(self, data: Any) -> int:
        if self.refusals > 0:
            self.refusals -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


def test_a_document_waits_for_room_on_this_disk_beyond_any_deadline():
    server, told, file = Server(), [], FullDisk(refusals=4)
    server.documents["given"] = b"the whole document"
    with httpx.Client(base_url="http://server", transport=httpx.MockTransport(server)) as client:
        transfer = Transfer(client, "/v1/allocations/a", 1, told.append)
        transfer.download("given", file, threading.Event(), deadline_s=0.01)
        assert file.getvalue() == b"the whole document"
        assert "given: not yet, it is tried again: no room for it here: [Errno 28] No space left" in told[0]
        stop = threading.Event()
        threading.Timer(0.2, stop.set).start()
        with pytest.raises(DownloadError, match="before the run was stopped: no room for it here"):
            transfer.download("given", FullDisk(refusals=math.inf), stop)


def test_a_stopped_run_waits_for_no_document():
    server, stop = Server(), threading.Event()

    def stopping(request: httpx.Request) -> httpx.Response:
        stop.set()
        return refused(request)

    server.answer = stopping
    each = reporter(server)
    with pytest.raises(DownloadError, match="before the run was stopped"):
        each.download("given", io.BytesIO(), stop)
    each.close()


def test_a_run_trains_to_its_end_while_the_server_is_away(tmp_path: Path):
    """The server is away from the first step on and comes back for the parameters."""
    draw = np.random.default_rng(5)
    shapes = {"w1": (FEATURES, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
    first = {key: draw.uniform(-0.5, 0.5, shape) for key, shape in shapes.items()}
    job = Job(programs_of(mlp()), save_data(tmp_path / "samples.npz", 100), 40, (0, 100), batch=32)
    server, records, uploads = Server(), Records(), threading.Event()

    def away(request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            uploads.set()
        return refused(request)

    server.answer = away
    each = reporter(server)
    run = Run(
        job.allocation(0),
        each,
        records,
        RunSettings(),
        store=lambda task: PlainCluster(first, 1, job.lr).store(0),
        clock=Clock(),
    )
    run.start()
    assert uploads.wait(WAIT_S), "the run did not come to its end without a server"
    with server.lock:
        server.answer = None
    assert records.over.wait(WAIT_S)
    each.report(event=DONE)
    assert each.flush(WAIT_S)
    each.close()
    assert records.last == (DONE, None)
    assert [m["step"] for m in server.facts("metrics")][-1] == 40
    assert sum(m["samples"] for m in server.facts("metrics") if m["split"] == "train") == 40 // 4 * 100
    assert load([body for method, _, body in server.calls if method == "PUT"][-1]).keys() == shapes.keys()
    last = server.taken[server.order[-1]]
    assert last["event"] == "done"
    assert any(report["traffic"] is not None for report in server.taken.values())
