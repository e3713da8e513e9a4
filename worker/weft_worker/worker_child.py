"""A slot of one job as a process of its own: what a daemon's child does from its fork to its end.

The daemon's first line is a task; the child says its reports, as `weft.agent.daemon` tells, which brings them to
the server. Documents go straight between the child and the server. It ends with its run, by SIGTERM, or when the
daemon's end of the channel closes.
"""

from __future__ import annotations

import codecs
import json
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import structlog  # noqa: F401 - `start_daemon` imports it late, in each child anew
from pydantic import BaseModel, ConfigDict

from weft.agent.startup import start_daemon
from weft.agent.transfer import Document, Transfer
from weft.api.agent import LogReport, MetricReport, Report, SetDone, SnapshotDone, WorkerAllocation
from weft.api.job import Traffic
from weft.api.lifecycle import AllocationEvent
from weft.api.trace import ProcessTrace
from weft_graph.ir import Node, Subgraph
from weft_graph.schema import schemas
from weft_graph.types import DType, TensorType
from weft_kernels.kernel import kernels
from weft_kernels.onnx_runtime.session import Session
from weft_kernels.random import draws
from weft_kernels.rules.lookup import rules
from weft_kvstore.process import tune_process
from weft_worker.device import open_device
from weft_worker.errors import DeviceError
from weft_worker.run import Run
from weft_worker.settings import RunSettings


class WorkerTask(BaseModel):
    """All that a child needs: a job's slot. Without one it only tries the device, and says which it is. `name`,
    `server`, `token` and `data_roots` are of `WorkerSettings`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: str
    server: str
    token: str | None
    data_roots: tuple[Path, ...] | None
    settings: RunSettings
    allocation: WorkerAllocation | None = None


def prepare() -> None:
    """What would be found late, and in each child anew. It starts no thread."""
    schemas()
    kernels()
    rules()
    httpx.Client().close()  # It imports most of what it needs when the first one is made.
    draws((0, 0), 0, 1)
    for encoding in ("ascii", "cp437", "idna"):  # of /proc, of NumPy's archives, of hosts
        codecs.lookup(encoding)
    number = TensorType(DType.FLOAT32, (1,))
    body = Subgraph(("x",), (), (Node("Neg", "first", ("x",), ("y",)),), ("y",))
    Session(body, {"x": number, "y": number}, threads=1)


def main(channel: socket.socket) -> None:
    """Carries the task out. What the job is at fault for is reported; the rest is raised."""
    reader = channel.makefile("rb")
    task = WorkerTask.model_validate_json(reader.readline())
    speaking = threading.Lock()

    def say(line: Mapping[str, Any]) -> None:
        with speaking:
            channel.sendall(json.dumps(line).encode() + b"\n")

    if task.allocation is None:
        say(device_found(task.settings.device))
        return
    stop = start_daemon(task.name)
    tune_process()
    with ExitStack() as stack:
        way = Way(task, task.allocation, say, stop)
        stack.callback(way.close)
        over = threading.Event()
        run = Run(task.allocation, way, Listening(way, over), task.settings, data_roots=task.data_roots)

        def hear() -> None:
            try:
                for line in reader:
                    asked = json.loads(line)
                    if "upload" in asked:
                        run.request_upload()
                    if "set" in asked:
                        run.request_set(asked["set"])
                    if "snapshot" in asked:
                        run.request_snapshot(**asked["snapshot"])
            finally:
                stop.set()

        def end() -> None:
            stop.wait()
            run.stop()

        for work in (hear, end):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()
        run.start()
        over.wait()


def device_found(name: str) -> dict[str, str]:
    """`title` of the device of that name, or `fault`: why there is none."""
    try:
        return {"title": open_device(name).title}
    except DeviceError as error:
        return {"fault": str(error)}


class Listening:
    """A run's listener: what it reaches is reported."""

    def __init__(self, way: Way, over: threading.Event) -> None:
        self._way = way
        self._over = over

    def reached(self, event: AllocationEvent, reason: str | None, *, lost: bool = False) -> None:
        self._way.report(event=event, reason=reason, lost=lost)

    def ended(self) -> None:
        self._over.set()


class Way:
    """A run's way to the server: facts through its daemon, in order, documents by HTTP."""

    def __init__(self, task: WorkerTask, allocation: WorkerAllocation, say: Any, stop: threading.Event) -> None:
        self._task = task
        self._allocation = allocation
        self._say = say
        self._stop = stop

    def report(
        self,
        *,
        event: AllocationEvent | None = None,
        reason: str | None = None,
        lost: bool = False,
        step: int | None = None,
        metrics: Sequence[MetricReport] = (),
        logs: Sequence[LogReport] = (),
        traffic: Traffic | None = None,
        sets: Sequence[SetDone] = (),
        snapshot: SnapshotDone | None = None,
        trace: ProcessTrace | None = None,
    ) -> None:
        facts = Report(
            term=self._allocation.term,
            seq=0,
            event=event,
            reason=reason,
            lost=lost,
            step=step,
            metrics=list(metrics),
            logs=list(logs),
            traffic=traffic,
            sets=list(sets),
            snapshot=snapshot,
            trace=trace,
        )
        said = facts.model_dump(mode="json", exclude={"term", "seq"}, exclude_defaults=True)
        self._say({"report": said})

    def upload(self, document: Document, step: int, final: bool) -> None:
        self._transfer.upload(document, step, final, self._stop)

    def download(self, what: str, into: BinaryIO, stop: threading.Event) -> None:
        self._transfer.download(what, into, stop)

    def close(self) -> None:
        """Closes the connection to the server, if there was one."""
        if "_client" in self.__dict__:
            self._client.close()

    @cached_property
    def _client(self) -> httpx.Client:
        server, token = self._task.server, self._task.token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Reading the certificates that it would trust takes longer than a small job's parameters.
        return httpx.Client(base_url=server, headers=headers, verify=server.startswith("https"))

    @cached_property
    def _transfer(self) -> Transfer:
        path, term = f"/v1/allocations/{self._allocation.id}", self._allocation.term
        return Transfer(self._client, path, term, self._warn)

    def _warn(self, message: str) -> None:
        self.report(logs=[LogReport(level="warning", message=message[:4096])])
