"""What a job's processes did in some of its steps: spans of time, which `weft trace` and `weft report` tell of."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from weft.api.base import Count, Model

MOST_SPANS = 4096
"""In one part of a process's trace."""


class TraceWindow(Model):
    """The steps that are traced, counted from the job's first, which is 1. Its last step never is."""

    first_step: Annotated[int, Field(ge=1, le=1 << 53)] = 11
    steps: Annotated[int, Field(ge=0, le=1000)] = 10
    """0 traces nothing."""


class SpanKind(StrEnum):
    """What a process did in a span."""

    COMPUTE = "compute"
    """A worker ran a kernel."""
    DATA = "data"
    """A worker read its samples of a step."""
    FETCH = "fetch"
    """From a worker's call for values until they were there."""
    SEND = "send"
    """From a worker's call that sends gradients until the store had them; where it pulls the new values too, until
    those were there."""
    RECEIVE = "receive"
    """A shard read a message of a worker's."""
    MERGE = "merge"
    """A shard summed gradients, or ran the optimizer."""
    ANSWER = "answer"
    """A shard made up messages to a worker."""


class Span(NamedTuple):
    """`name` and `thread` are places in the lists of the process's trace; `step` counts from 1, 0 where there is none;
    `slot` is the worker that a shard's span is about, -1 where it is none. Times are nanoseconds since `start_us`."""

    kind: SpanKind
    name: int
    thread: int
    step: int
    slot: int
    begin_ns: int
    end_ns: int


class ProcessTrace(Model):
    """Spans of one process, or a part of them."""

    kind: Literal["worker", "shard"]
    place: Count
    """Its slot, or its number among the shards."""
    host: Annotated[str, Field(max_length=256)]
    pid: Count
    start_us: Count
    """Microseconds since 1970, by the host's clock: what `begin_ns` and `end_ns` count from."""
    peak_bytes: Count
    """The most memory that the process has had."""
    names: Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=MOST_SPANS)]
    threads: Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=MOST_SPANS)]
    spans: Annotated[list[Span], Field(max_length=MOST_SPANS)]
    dropped: Count = 0
    """Spans that there was no room for."""

    @model_validator(mode="after")
    def _names_are_there(self) -> Self:
        for number, span in enumerate(self.spans):
            if not (0 <= span.name < len(self.names) and 0 <= span.thread < len(self.threads)):
                raise ValueError(f"spans[{number}]: name {span.name} or thread {span.thread} is none of its lists")
        return self


class JobTrace(Model):
    """What is there of a job's trace."""

    window: TraceWindow
    processes: list[ProcessTrace]
