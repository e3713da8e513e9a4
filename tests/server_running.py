"""A server that listens on a free port of loopback for the length of a test, and agents that are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from safetensors.numpy import save

from documented import checker
from server_specs import CLASSES, FEATURES
from weft.agent.membership import Membership
from weft.agent.reporter import Reporter, UploadError
from weft.api.agent import AgentKind, Allocation, MetricReport, Orders, Registration, WorkerAllocation
from weft.api.lifecycle import AllocationEvent
from weft_server.app import create_app
from weft_server.serving import Server, listening, locked
from weft_server.settings import Settings

DEADLINE_S = 60.0


@contextmanager
def running(directory: Path, **settings: Any) -> Iterator[httpx.Client]:
    """A client of a server that works in `directory`; heartbeats come ten times a second. What it is answered has to be
    what the server's OpenAPI documents say."""
    quick = {"heartbeat_interval_s": 0.1, "lost_after_s": 2.0, "port": 0}
    chosen = Settings(directory=directory, **{**quick, **settings})
    stop = threading.Event()
    app = create_app(chosen)
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory) as lock, listening(chosen.host, chosen.port) as listener:
        server = Server(app, chosen, stop, lock)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server")
        thread.start()
        try:
            eventually(lambda: server.started or not thread.is_alive(), "the server listens")
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            hooks = {"response": [checker(chosen)]}
            name = {"User-Agent": "weft-tests"}  # the SDK of the release before did not say its name
            with httpx.Client(base_url=url, timeout=DEADLINE_S, headers=name, event_hooks=hooks) as client:
                yield client
        finally:
            stop.set()
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "the server ends when it is told to"


def eventually(condition: Callable[[], object], what: str) -> None:
    """Waits until the condition holds; fails the test at the deadline, saying what did not come."""
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError(f"within {DEADLINE_S:g} s it did not come about that {what}")


def parameters(step: int) -> bytes:
    """A document of the linear job's parameters; every value is the step."""
    return save(
        {
            "w": np.full((FEATURES, CLASSES), step, np.float32),
            "b": np.full((CLASSES,), step, np.float32),
        }
    )


@dataclass
class Actor:
    """An agent that plays its part by itself as far as `stop_at`, and keeps what it was told."""

    client: httpx.Client
    kind: AgentKind
    name: str
    stop_at: AllocationEvent | None = None
    brings: Callable[[int], bytes] = parameters
    orders: list[Orders] = field(default_factory=list)
    lost_times: int = 0
    refused: list[str] = field(default_factory=list)
    """Uploads that the server did not take."""
    reporters: dict[str, Reporter] = field(default_factory=dict)
    token: str | None = None

    def __post_init__(self) -> None:
        registration = Registration(kind=self.kind, name=self.name, pid=1)
        self.membership = Membership(str(self.client.base_url), registration, self, token=self.token)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.membership.run, args=(self._stop,), name=self.name)
        self._thread.start()

    def hold(self, orders: Orders) -> None:
        self.orders.append(orders)
        held = {each.id for each in orders.allocations}
        for gone in self.reporters.keys() - held:
            self.reporters.pop(gone).close()
        for allocation in orders.allocations:
            if allocation.id not in self.reporters:
                self.reporters[allocation.id] = self.membership.reporter(allocation.id, allocation.term)
                self._play(allocation, self.reporters[allocation.id])
        for wanted in orders.upload:
            threading.Thread(target=self._upload, args=(wanted, 1), daemon=True).start()

    def lost(self) -> None:
        self.lost_times += 1
        for reporter in self.reporters.values():
            reporter.close()
        self.reporters.clear()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        for reporter in self.reporters.values():
            reporter.close()
        self.membership.close()

    def finish(self) -> None:
        """A worker that was stopped at `running` goes on to its end."""
        self.stop_at = None
        for allocation in self.orders[-1].allocations:
            if isinstance(allocation, WorkerAllocation):
                self._train(allocation, self.reporters[allocation.id])

    def _play(self, allocation: Allocation, reporter: Reporter) -> None:
        is_shard = self.kind is AgentKind.SHARD
        endpoint = f"tcp://127.0.0.1:{5000 + int(self.name.rpartition('-')[2])}" if is_shard else None
        reporter.report(event=AllocationEvent.READY, endpoint=endpoint)
        if isinstance(allocation, WorkerAllocation) and self.stop_at is not AllocationEvent.READY:
            reporter.report(event=AllocationEvent.RUNNING, step=0)
            if self.stop_at is not AllocationEvent.RUNNING:
                self._train(allocation, reporter)

    def _train(self, allocation: WorkerAllocation, reporter: Reporter) -> None:
        metric = MetricReport(split="train", step=allocation.steps, samples=2, sums={"loss": 1.0 + allocation.slot})
        reporter.report(step=allocation.steps, metrics=[metric])
        if allocation.keeper:
            threading.Thread(target=self._keep, args=(allocation, reporter), daemon=True).start()
        else:
            reporter.report(event=AllocationEvent.DONE)

    def _keep(self, allocation: WorkerAllocation, reporter: Reporter) -> None:
        self._bring(reporter, allocation.steps, final=True)
        reporter.report(event=AllocationEvent.DONE)

    def _upload(self, allocation: str, step: int) -> None:
        reporter = self.reporters.get(allocation)
        if reporter is not None:
            self._bring(reporter, step, final=False)

    def _bring(self, reporter: Reporter, step: int, *, final: bool) -> None:
        try:
            reporter.upload(self.brings(step), step, final)
        except UploadError as error:
            self.refused.append(str(error))


@contextmanager
def cast(
    client: httpx.Client, workers: int = 2, shards: int = 1, stop_at: AllocationEvent | None = None, **more: Any
) -> Iterator[tuple[Sequence[Actor], Sequence[Actor]]]:
    """(workers, shards) that play until the test ends."""
    played_shards = [Actor(client, AgentKind.SHARD, f"shard-{number}", **more) for number in range(shards)]
    played_workers = [Actor(client, AgentKind.WORKER, f"worker-{number}", stop_at, **more) for number in range(workers)]
    try:
        yield played_workers, played_shards
    finally:
        for actor in (*played_workers, *played_shards):
            actor.end()


def submit(client: httpx.Client, document: dict[str, Any], **headers: str) -> httpx.Response:
    return client.post("/v1/jobs", json=document, headers=headers)


def state(client: httpx.Client, job: str) -> str:
    return str(client.get(f"/v1/jobs/{job}").json()["state"])
