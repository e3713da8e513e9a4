"""A server that lives in a function: what the SDK's tests talk to instead of a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from weft.api.dry_run import DryRun, StepMemory, StepTraffic, StoreMemory, WorkerMemory
from weft.api.event import Event, EventBody, StateChanged
from weft.api.job import Job, Progress
from weft.api.lifecycle import JobState
from weft.api.store import InitializerSpec, KeySpec
from weft.client import Client
from weft.http import Clock

START = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
URL = "http://127.0.0.1:8470"

Handler = Callable[[httpx.Request], httpx.Response]


def job(id: str = "job-1", state: JobState = JobState.RUNNING, **fields: Any) -> Job:
    """A job with what a test does not care for filled in."""
    return Job(
        **{
            "id": id, "name": "digits", "state": state, "progress": Progress(step=3, steps=10, epoch=1),
            "workers": 2, "shards": 2, "created_at": START, **fields,
        }
    )  # fmt: skip


def event(seq: int, body: EventBody, after_s: float = 0) -> Event:
    """The event `seq`, `after_s` seconds after the start."""
    return Event(seq=seq, at=START + timedelta(seconds=after_s), body=body)


def states(*names: str) -> list[Event]:
    """Events of these states, numbered from 1."""
    return [event(seq, StateChanged(state=JobState(name)), seq) for seq, name in enumerate(names, 1)]


def sse(events: list[Event]) -> bytes:
    """The events as the server writes them."""
    return b"".join(f"event: {e.body.kind}\nid: {e.seq}\ndata: {e.model_dump_json()}\n\n".encode() for e in events)


def problem(status: int, code: str, detail: str = "no", errors: list[dict[str, Any]] | None = None) -> httpx.Response:
    """A problem document as the server gives it."""
    document = {
        "type": f"/problems/{code}", "title": code, "status": status, "detail": detail, "code": code,
        "errors": errors or [],
    }  # fmt: skip
    return httpx.Response(status, json=document, headers={"Content-Type": "application/problem+json"})


def stream(*chunks: bytes, then: Exception | None = None) -> httpx.Response:
    """An event stream that brings these chunks, and then ends or breaks."""

    class Chunks(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from chunks
            if then is not None:
                raise then

    return httpx.Response(200, stream=Chunks(), headers={"Content-Type": "text/event-stream; charset=utf-8"})


def unavailable(_request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("[Errno 111] Connection refused")


@dataclass
class FakeTime:
    """A clock on which sleeping is all that takes time."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: self.now, sleep=self.sleep)


@dataclass
class Script:
    """Answers each request by the next handler; the last one answers all that follow."""

    handlers: list[Handler]
    requests: list[httpx.Request] = field(default_factory=list)
    time: FakeTime = field(default_factory=FakeTime)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        return self.handlers[min(len(self.requests), len(self.handlers)) - 1](request)

    def client(self, **settings: Any) -> Client:
        """A client whose network is this script."""
        return Client(URL, transport=httpx.MockTransport(self), clock=self.time.clock, **settings)

    def body(self, index: int = -1) -> Any:
        """The JSON that a request brought."""
        return json.loads(self.requests[index].content)


def answers(*responses: httpx.Response | Handler | Any) -> Script:
    """A script of responses, handlers, or models to be answered with 200."""

    def handler(response: Any) -> Handler:
        if isinstance(response, httpx.Response):
            return lambda _: response
        if callable(response):
            return response  # type: ignore[no-any-return]  # a handler
        return lambda _: httpx.Response(200, content=response.model_dump_json())

    return Script([handler(response) for response in responses])


_MIB = 1 << 20


def _key(name: str, *, rows: bool = False) -> KeySpec:
    zeros = InitializerSpec(op_type="ConstantOfShape", attributes={"value": 0.0})
    return KeySpec(
        key=name, dtype="float32", shape=[4, 4], initializer=zeros, update="rule", priority=0, slots=[0, 1], rows=rows
    )


def _step(arena: int, operations: int = 1000) -> StepMemory:
    return StepMemory(
        given_bytes=_MIB, intermediate_bytes=9 * _MIB, live_bytes=arena, arena_bytes=arena, kept_bytes=_MIB, unknown=1,
        operations=operations * 10**9,
    )  # fmt: skip


DRY = DryRun(
    name="lines", workers=2, shards=2, steps=500, steps_per_epoch=100, keys=[_key("table", rows=True), _key("w")],
    slices=7, optimizer="adam", hyper={"lr": 0.1}, given=["w"], waits_for="needs 2 workers, 1 is there",
    worker_memory=WorkerMemory(
        parameter_bytes=_MIB, state_bytes=0, train_peak_bytes=3 * _MIB, evaluate_peak_bytes=None,
        train=_step(arena=5 * _MIB),
        recompute={"off": _step(arena=5 * _MIB), "cheap": _step(arena=2 * _MIB, operations=1010)},
    ),
    store_memory=StoreMemory(
        parameter_bytes=_MIB,
        state_bytes=2 * _MIB,
        table_bytes=64 * _MIB,
        table_state_bytes=128 * _MIB,
        largest_shard_bytes=100 * _MIB,
    ),
    step_traffic=StepTraffic(fetched_bytes=100, sent_bytes=2048, fetched_row_bytes=_MIB, sent_row_bytes=_MIB),
    programs={"train": []}, text="train:\n  FetchRows",
)  # fmt: skip
