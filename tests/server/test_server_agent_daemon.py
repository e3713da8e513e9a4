"""An agent's daemon with child processes, at a server that listens: what its calls bring and carry out."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from server_running import DEADLINE_S, Actor, eventually, running, state, submit
from server_specs import save_rows, spec_json
from weft.agent.children import Forkserver
from weft.agent.daemon import AgentDaemon
from weft.agent.membership import Membership
from weft.agent.state import AnyAllocation, Lease
from weft.api.agent import AgentKind, Registration, WorkerAllocation
from weft_worker.settings import WorkerSettings

CHILD = """
import json

def prepare():
    pass

def main(channel):
    reader = channel.makefile("rb")
    task = json.loads(reader.readline())
    for line in task["says"]:
        channel.sendall(json.dumps(line).encode() + b"\\n")
    reader.read()
"""
RUNS = ({"report": {"event": "ready"}}, {"report": {"event": "running", "step": 0}})


class Counted(httpx.BaseTransport):
    """The network. Counts what passes."""

    def __init__(self) -> None:
        self._network = httpx.HTTPTransport()
        self.calls: list[tuple[str, int, bytes]] = []
        """Method and last words of the path, status, what was answered."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._network.handle_request(request)
        content = response.read()
        words = [word for word in request.url.path.split("/")[2:] if not any(letter.isdigit() for letter in word)]
        self.calls.append((" ".join((request.method, *words)), response.status_code, content))
        return response

    def close(self) -> None:
        self._network.close()

    def named(self, name: str) -> list[tuple[int, bytes]]:
        return [(status, content) for each, status, content in list(self.calls) if each == name]


@dataclass
class Agent:
    """A worker's daemon whose children say `says`. It understands reports alone."""

    url: str
    says: tuple[dict[str, Any], ...] = RUNS
    network: Counted = field(default_factory=Counted)
    allocations: list[WorkerAllocation] = field(default_factory=list)
    """With what children were started."""

    def __post_init__(self) -> None:
        settings = WorkerSettings(server=self.url, name="worker-0")
        registration = Registration(kind=AgentKind.WORKER, name="worker-0", pid=os.getpid())
        self.daemon = AgentDaemon(
            settings,
            registration,
            Forkserver("agents_child"),
            self._task,
            at_once=1,
            heard=self._heard,
            join=lambda registration, holder: Membership(self.url, registration, holder, transport=self.network),
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.daemon.run, args=(self._stop,), name="agent")
        self._thread.start()

    def _task(self, allocation: AnyAllocation) -> dict[str, Any]:
        assert isinstance(allocation, WorkerAllocation)
        self.allocations.append(allocation)
        return {"says": self.says}

    def _heard(self, lease: Lease, line: dict[str, Any] | None) -> None:
        if line is not None:
            raise LookupError(f"{line} of {lease}")

    def kill_child(self) -> None:
        (carried,) = self.daemon._carried.values()
        assert carried.child is not None
        os.kill(carried.child.process, signal.SIGKILL)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


@pytest.fixture(autouse=True)
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agents_child.py").write_text(textwrap.dedent(CHILD))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with running(tmp_path / "server", lost_after_s=60.0) as client:
        shard = Actor(client, AgentKind.SHARD, "shard-0")
        yield client
        shard.end()


def job_of(client: httpx.Client, folder: Path, **changes: Any) -> str:
    document = spec_json(save_rows(folder / "rows.npz"), parallelism={"workers": 1, "shards": 1}, **changes)
    return str(submit(client, document).json()["id"])


def test_programs_are_fetched_once_by_their_hash_and_an_idle_second_brings_no_byte(
    client: httpx.Client, tmp_path: Path
) -> None:
    agent = Agent(str(client.base_url))
    try:
        job = job_of(client, tmp_path, max_restarts=3)
        eventually(lambda: state(client, job) == "running", "the job runs")
        calls = agent.network
        programs = client.get(f"/v1/jobs/{job}/programs").content
        assert [content for _, content in calls.named("GET allocations programs")] == [programs]
        orders = [content for status, content in calls.named("POST agents heartbeat") if status == 200]
        assert len(orders) <= 3
        assert [b'"programs":{}' in content for content in orders if b'"slot":0' in content] == [True]
        idle = ("POST agents heartbeat", 204, b"")
        eventually(lambda: calls.calls[-10:] == [idle] * 10, "a second in which nothing but heartbeats is sent")
        agent.kill_child()
        eventually(lambda: len(agent.allocations) == 2, "another child takes its place")
        eventually(lambda: state(client, job) == "running", "the job runs again")
        first, second = agent.allocations
        assert first.id != second.id
        assert first.programs == second.programs == client.get(f"/v1/jobs/{job}/programs").json()
        assert len(calls.named("GET allocations programs")) == 1
    finally:
        agent.end()


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (
            [{"report": {"event": "ready", "endpoint": "tcp://127.0.0.1:1"}}],
            "the server refused a report of this process, 422: .*`endpoint` belongs to a shard's report",
        ),
        ([RUNS[1]], "its process said what it cannot say now: .* 'assigned' knows no event 'running'"),
        ([RUNS[0], {"report": {"event": "swimming"}}], "its process said what is no report: .*swimming"),
        ([RUNS[0], {"statistics": "odd"}], "its process said what is no report: .*odd"),
    ],
    ids=["refused by the server", "out of order", "no report", "not heard"],
)
def test_a_report_that_cannot_be_taken_fails_the_job_with_its_reason(
    client: httpx.Client, tmp_path: Path, says: list[dict[str, Any]], reason: str
) -> None:
    agent = Agent(str(client.base_url), tuple(says))
    try:
        job = job_of(client, tmp_path)
        eventually(lambda: state(client, job) == "failed", "the job fails")
        told = client.get(f"/v1/jobs/{job}").json()["reason"]
        assert re.search(rf"^worker-0 \(worker 0\) failed .*{reason}", told, re.DOTALL), told
        eventually(lambda: not agent.daemon._carried, "the process is ended")
    finally:
        agent.end()
