"""The worker's daemon: orders of a server in this process, runs in children, what the server is told."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import load, save
from typer.testing import CliRunner

from server_running import eventually
from weft.agent.membership import Holder
from weft.api.agent import AgentKind, Orders, Registration, SetDone, SetOrder, WorkerAllocation
from weft.api.job import Traffic
from weft.api.lifecycle import AllocationEvent
from weft_kvstore.process import SWITCH_INTERVAL_S, tune_process
from weft_worker.daemon import WorkerDaemon
from weft_worker.errors import DeviceError
from weft_worker.settings import WorkerSettings
from worker_graphs import CLASSES, mlp
from worker_jobs import WAIT_S, Job, programs_of, save_data

READY, RUNNING, DONE, FAILED = (AllocationEvent(name) for name in ("ready", "running", "done", "failed"))
TOKEN = "a-token-of-agents"


class Office:
    """The server's side of a membership: gives orders and hears reports. Documents come and go by HTTP."""

    def __init__(self) -> None:
        self.registration: Registration
        self.holder: Holder
        self.events: SimpleQueue[tuple[str, AllocationEvent, str | None]] = SimpleQueue()
        self.uploads: SimpleQueue[tuple[str, int, bool]] = SimpleQueue()
        self.steps: SimpleQueue[int] = SimpleQueue()
        self.sets: SimpleQueue[SetDone] = SimpleQueue()
        self.said: list[tuple[str, AllocationEvent | None, Traffic | None]] = []
        self.documents: dict[str, bytes] = {}
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.over = False
        self.version = 0
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), type("Door", (Door,), {"office": self}))
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}"

    def join(self, registration: Registration, holder: Holder) -> Office:
        self.registration, self.holder = registration, holder
        return self

    def run(self, stop: threading.Event) -> None:
        stop.wait()

    def reporter(self, allocation_id: str, term: int) -> OfficeReporter:
        self.opened.append(allocation_id)
        return OfficeReporter(self, allocation_id)

    def close(self) -> None:
        self.over = True

    def order(self, *held: WorkerAllocation, upload: tuple[str, ...] = (), sets: tuple[SetOrder, ...] = ()) -> None:
        self.version += 1
        orders = Orders(version=self.version, allocations=list(held), upload=list(upload), sets=list(sets))
        self.holder.hold(orders)

    def heard(self, count: int) -> list[tuple[str, AllocationEvent, str | None]]:
        return [self.events.get(timeout=WAIT_S) for _ in range(count)]


class Door(BaseHTTPRequestHandler):
    office: Office

    def do_PUT(self) -> None:
        url = urlsplit(self.path)
        asked = parse_qs(url.query)
        load(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Authorization"] == f"Bearer {TOKEN}"
        self.office.uploads.put((url.path.split("/")[3], int(asked["step"][0]), asked["final"] == ["true"]))
        self.send_response(204)
        self.end_headers()

    def do_GET(self) -> None:
        content = self.office.documents["/".join(urlsplit(self.path).path.split("/")[4:])]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        pass


class OfficeReporter:
    def __init__(self, office: Office, allocation: str) -> None:
        self.office = office
        self.allocation = allocation

    def report(self, *, event=None, reason=None, step=None, traffic=None, sets=(), **others: Any) -> None:
        self.office.said.append((self.allocation, event, traffic))
        for done in sets:
            self.office.sets.put(done)
        if event is not None:
            self.office.events.put((self.allocation, event, reason))
        if step is not None:
            self.office.steps.put(step)

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        self.office.closed.append(self.allocation)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(programs_of(mlp()), save_data(tmp_path / "samples.npz", 100), 6, (0, 100), batch=32)


@pytest.fixture(scope="module")
def office() -> Iterator[Office]:
    """A daemon at work on a thread of its own, and its server; at the end it must go home by itself, with a run."""
    office = Office()
    stop = threading.Event()
    settings = WorkerSettings(server=office.url, name="worker-0", token=TOKEN)
    daemon = WorkerDaemon(settings, join=office.join)
    thread = threading.Thread(target=daemon.run, args=(stop,))
    thread.start()
    yield office
    stop.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert office.over
    office.http.shutdown()


@pytest.fixture
def served(office: Office) -> Iterator[Office]:
    """The daemon, which holds nothing before and after a test."""
    office.opened.clear()
    office.closed.clear()
    office.said.clear()
    office.events, office.steps, office.uploads = SimpleQueue(), SimpleQueue(), SimpleQueue()
    yield office
    office.order()
    eventually(lambda: sorted(office.closed) == sorted(office.opened), "all runs have ended")


def renamed(job: Job, name: str, **changes: object) -> WorkerAllocation:
    return job.allocation(0).model_copy(update={"id": name, **changes})


def endless(job: Job, name: str) -> WorkerAllocation:
    return renamed(job, name, steps=10_000_000)


IMPORTED_LATE = """
import socket, sys
from weft_worker import worker_child
worker_child.prepare()
known = set(sys.modules)
ours, its = socket.socketpair()
ours.sendall(sys.stdin.buffer.read())
worker_child.main(its)
print(*sorted(set(sys.modules) - known), [json for json in ours.recv(1 << 16).splitlines() if b'"done"' in json])
"""


def test_a_child_has_all_modules_that_a_small_job_needs_from_its_fork_on(served, job):
    task = {"name": "w", "server": served.url, "token": TOKEN, "data_roots": None, "settings": {}}
    line = json.dumps({**task, "allocation": renamed(job, "a").model_dump(mode="json")}).encode() + b"\n"
    said = subprocess.run([sys.executable, "-c", IMPORTED_LATE], input=line, capture_output=True, check=True)
    assert said.stdout == b"""[b'{"report": {"event": "done"}}']\n"""


def test_a_worker_registers_under_its_name(served):
    assert served.registration.kind is AgentKind.WORKER
    assert (served.registration.name, served.registration.device) == ("worker-0", "cpu")


def test_an_allocation_is_carried_out_and_told_and_the_next_one_too(served, job):
    served.order(renamed(job, "a"))
    assert served.heard(3) == [("a", READY, None), ("a", RUNNING, None), ("a", DONE, None)]
    assert served.uploads.get(timeout=WAIT_S) == ("a", 6, True)
    served.order(renamed(job, "b"))
    assert served.heard(3) == [("b", READY, None), ("b", RUNNING, None), ("b", DONE, None)]
    assert served.closed == ["a"]


def test_a_failed_run_is_told_with_its_reason_and_the_worker_lives_on(served, job):
    served.order(renamed(job, "a", programs={}))
    ((name, event, reason),) = served.heard(1)
    assert (name, event) == ("a", FAILED)
    assert "programs cannot be read" in reason
    served.order(renamed(job, "b"))
    assert [event for _, event, _ in served.heard(3)] == [READY, RUNNING, DONE]


def test_a_run_that_is_not_ordered_any_more_is_stopped_without_a_word(served, job):
    served.order(endless(job, "a"))
    served.heard(2)
    served.steps.get(timeout=WAIT_S)
    served.order(renamed(job, "b"))
    assert served.heard(3) == [("b", READY, None), ("b", RUNNING, None), ("b", DONE, None)]


def test_an_upload_on_request_is_brought_while_the_run_goes_on(served, job):
    allocation = endless(job, "a")
    served.order(allocation)
    served.heard(2)
    served.order(allocation, upload=("a",))
    name, step, final = served.uploads.get(timeout=WAIT_S)
    assert (name, final) == ("a", False)
    assert step >= 0


def test_ordered_parameters_are_set_while_the_run_goes_on(served, job):
    allocation = endless(job, "a")
    served.documents["sets/4"] = save({"b2": np.zeros(CLASSES)})
    served.documents["sets/5"] = save({"b2": np.zeros(CLASSES + 1)})
    served.order(allocation)
    served.heard(2)
    served.order(allocation, sets=(SetOrder(allocation="a", number=4), SetOrder(allocation="a", number=5)))
    done, refused = served.sets.get(timeout=WAIT_S), served.sets.get(timeout=WAIT_S)
    assert (done.number, done.error) == (4, None)
    assert refused.number == 5
    assert "parameter 'b2' is float64[3], the document has float64[4]" in refused.error


def test_the_bytes_at_the_stores_socket_are_told_before_the_end(served, job):
    served.order(renamed(job, "a"))
    served.heard(3)
    events = [(event, traffic is not None) for _, event, traffic in served.said]
    assert events[-1] == (DONE, False)
    assert events[-2] == (None, True)


def test_a_run_that_ignores_its_end_is_killed_and_the_next_one_starts(served, job, monkeypatch):
    """Its process stands still: it hears no signal but the last one."""
    monkeypatch.setattr("weft.agent.children.Child.stop.__defaults__", (0.05,))
    served.order(endless(job, "a"))
    served.heard(2)
    os.kill(process_of_a_run(), signal.SIGSTOP)
    served.order(renamed(job, "b"))
    assert [name for name, _, _ in served.heard(3)] == ["b"] * 3


@pytest.mark.parametrize(
    ("number", "cause"),
    [(signal.SIGKILL, "out of memory, if nobody sent it"), (signal.SIGBUS, "a data file that it was reading was cut")],
)
def test_a_run_whose_process_dies_is_told_as_failed_and_the_next_one_starts(served, job, number, cause):
    """SIGBUS is what reading a page of a mapped file brings that was cut short."""
    served.order(endless(job, "a"))
    served.heard(2)
    os.kill(process_of_a_run(), number)
    ((name, event, reason),) = served.heard(1)
    assert (name, event) == ("a", FAILED)
    assert reason.startswith(f"its process was ended by {number.name}; {cause}")
    served.order(renamed(job, "b"))
    assert [event for _, event, _ in served.heard(3)] == [READY, RUNNING, DONE]


def process_of_a_run() -> int:
    """The one child of this process's forkserver."""
    below = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    (server,) = {int(one) for path in below for one in path.read_text().split()}
    (run,) = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return int(run)


def test_a_daemon_whose_device_is_not_there_does_not_start():
    with pytest.raises(DeviceError, match="cuda:99"):
        WorkerDaemon(WorkerSettings(server="http://nowhere", name="worker-0", device="cuda:99"))


def test_a_daemon_that_ends_takes_its_run_with_it(job):
    office, stop = Office(), threading.Event()
    daemon = WorkerDaemon(WorkerSettings(server=office.url, name="worker-0"), join=office.join)
    thread = threading.Thread(target=daemon.run, args=(stop,))
    thread.start()
    office.order(endless(job, "a"))
    office.heard(2)
    stop.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert office.over
    assert office.events.empty()
    office.http.shutdown()


def test_a_lost_worker_drops_its_run(served, job):
    served.order(endless(job, "a"))
    served.heard(2)
    served.holder.lost()
    served.order(renamed(job, "b"))
    assert [name for name, _, _ in served.heard(3)] == ["b"] * 3


def test_settings_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("WEFT_WORKER_SERVER", "http://server:8080")
    monkeypatch.setenv("WEFT_WORKER_NAME", "worker-7")
    monkeypatch.setenv("WEFT_WORKER_DATA_ROOTS", "/data:/more")
    monkeypatch.setenv("WEFT_WORKER_COMPUTE_THREADS", "3")
    settings = WorkerSettings()
    assert (settings.server, settings.name, settings.compute_threads) == ("http://server:8080", "worker-7", 3)
    assert settings.data_roots == (Path("/data"), Path("/more"))


@pytest.mark.parametrize("wrong", [{"server": "nowhere"}, {"name": "a b"}, {"steps_in_flight": 3}, {"io_threads": 0}])
def test_settings_that_cannot_be_meant_are_refused(wrong):
    with pytest.raises(ValidationError):
        WorkerSettings(**{"server": "http://server", "name": "w", **wrong})


def test_the_command_line_says_which_setting_is_wrong():
    from typer import Typer

    from weft_worker.__main__ import main

    app = Typer()
    app.command()(main)
    result = CliRunner().invoke(app, ["--server", "nowhere", "--name", "w"])
    assert result.exit_code == 2
    assert "--server is 'nowhere'; it should begin with http://" in result.output


def test_a_worker_process_sets_the_switch_interval_and_keeps_its_modules_from_the_garbage_collector():
    before = sys.getswitchinterval()
    gc.unfreeze()
    try:
        tune_process()
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
        assert gc.get_freeze_count() > len(sys.modules)
    finally:
        sys.setswitchinterval(before)
