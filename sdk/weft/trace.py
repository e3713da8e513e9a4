"""A job's trace for people: what its steps spent their time on, and a file that Perfetto and Chrome open.

Both are made of the same spans. `Fetch` is asked for long before it can be answered, since a value of the next step
waits for this step's gradient. So a fetch is taken to begin once the worker has begun to send a gradient of its keys.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Final

from weft.api.trace import JobTrace, ProcessTrace, SpanKind

SLOWEST: Final = 10
"""Operators that a report lists."""

_COMMUNICATION: Final = (SpanKind.FETCH, SpanKind.SEND)
_SHARDS_AFTER: Final = 1000
"""Process numbers of shards in a file for Perfetto: those of workers come first."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Nanoseconds since 1970. `row` is the line of its process that it is drawn in; `asked`: when a fetch was called,
    which `begin` is not before."""

    kind: SpanKind
    name: str
    row: str
    step: int
    slot: int
    begin: int
    end: int
    asked: int


@dataclass(frozen=True, slots=True)
class _Process:
    kind: str
    place: int
    host: str
    pid: int
    peak_bytes: int
    dropped: int
    spans: tuple[_Span, ...]

    @property
    def name(self) -> str:
        return f"{self.kind} {self.place}"

    def of(self, *kinds: SpanKind) -> list[_Span]:
        """Its spans of these kinds, in the order of their ends."""
        return sorted((span for span in self.spans if span.kind in kinds), key=lambda span: span.end)


# --- What steps spent their time on -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operator:
    """Milliseconds that an operator took in a step, and its share of all that was computed."""

    name: str
    ms: float
    share: float


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Milliseconds a step, over the traced steps. `communication_ms`: while gradients or values were on their way;
    `exposed_ms`: that part of it in which nothing was computed. `data_ms`: reading samples."""

    slot: int
    steps: int
    step_ms: float
    compute_ms: float
    data_ms: float
    communication_ms: float
    exposed_ms: float
    peak_bytes: int
    slowest: tuple[Operator, ...]

    @property
    def overlap(self) -> float:
        """The share of communication that computing hid; 1.0 where nothing travelled."""
        return 1.0 - self.exposed_ms / self.communication_ms if self.communication_ms else 1.0


@dataclass(frozen=True, slots=True)
class ShardReport:
    """Milliseconds a step that a shard spent reading messages, merging and updating, and answering."""

    shard: int
    receive_ms: float
    merge_ms: float
    answer_ms: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a job's traced steps spent their time on. `str` of it is for people."""

    first_step: int
    last_step: int
    workers: tuple[WorkerReport, ...]
    shards: tuple[ShardReport, ...]
    dropped: int
    """Spans that a process had no room for."""

    def as_json(self) -> dict[str, Any]:
        """The same as a document."""
        told = asdict(self)
        for worker, document in zip(self.workers, told["workers"], strict=True):
            document["overlap"] = worker.overlap
        return told

    def __str__(self) -> str:
        lines = [f"Steps {self.first_step} to {self.last_step}, milliseconds a step", ""]
        lines += _table(
            ("", "step", "compute", "communication", "exposed", "overlap", "data", "peak memory"),
            [
                (
                    f"worker {each.slot}",
                    f"{each.step_ms:.2f}",
                    f"{each.compute_ms:.2f}",
                    f"{each.communication_ms:.2f}",
                    f"{each.exposed_ms:.2f}",
                    f"{each.overlap:.0%}" if each.communication_ms else "-",
                    f"{each.data_ms:.2f}",
                    f"{each.peak_bytes / 2**20:.0f} MiB",
                )
                for each in self.workers
            ],
        )
        if self.shards:
            lines += [""]
            lines += _table(
                ("", "receive", "merge", "answer", "peak memory"),
                [
                    (
                        f"shard {each.shard}",
                        f"{each.receive_ms:.2f}",
                        f"{each.merge_ms:.2f}",
                        f"{each.answer_ms:.2f}",
                        f"{each.peak_bytes / 2**20:.0f} MiB",
                    )
                    for each in self.shards
                ],
            )
        if self.workers and self.workers[0].slowest:
            lines += ["", f"Slowest operators of worker {self.workers[0].slot}"]
            lines += _table(
                ("", "ms", "of compute"),
                [(each.name[:60], f"{each.ms:.3f}", f"{each.share:.0%}") for each in self.workers[0].slowest],
            )
        lines += [
            "",
            "Communication: gradients or values were on their way. Exposed: nothing was computed meanwhile.",
        ]
        if self.dropped:
            lines.append(f"{self.dropped} spans were dropped: trace fewer steps (trace.steps).")
        return "\n".join(lines)


def report_of(trace: JobTrace) -> StepReport:
    """What the traced steps spent their time on."""
    window = trace.window
    found = _processes(trace)
    return StepReport(
        first_step=window.first_step,
        last_step=window.first_step + window.steps - 1,
        workers=tuple(_worker_report(each) for each in found if each.kind == "worker" and each.of(SpanKind.COMPUTE)),
        shards=tuple(_shard_report(each) for each in found if each.kind == "shard"),
        dropped=sum(each.dropped for each in found),
    )


def _worker_report(worker: _Process) -> WorkerReport:
    steps = len({span.step for span in worker.of(SpanKind.COMPUTE)})
    computed = _union(worker.of(SpanKind.COMPUTE))
    travelled = _union(worker.of(*_COMMUNICATION))
    whole = _union(worker.spans)
    per_ms = 1e6 * steps
    total = max(sum(span.end - span.begin for span in worker.of(SpanKind.COMPUTE)), 1)
    by_name: dict[str, int] = defaultdict(int)
    for span in worker.of(SpanKind.COMPUTE):
        by_name[span.name] += span.end - span.begin
    slowest = sorted(by_name.items(), key=lambda one: -one[1])[:SLOWEST]
    return WorkerReport(
        slot=worker.place,
        steps=steps,
        step_ms=(whole[-1][1] - whole[0][0]) / per_ms,
        compute_ms=_length(computed) / per_ms,
        data_ms=_length(_union(worker.of(SpanKind.DATA))) / per_ms,
        communication_ms=_length(travelled) / per_ms,
        exposed_ms=_length(_without(travelled, computed)) / per_ms,
        peak_bytes=worker.peak_bytes,
        slowest=tuple(Operator(name, ns / per_ms, ns / total) for name, ns in slowest),
    )


def _shard_report(shard: _Process) -> ShardReport:
    per_ms = 1e6 * max(len({span.step for span in shard.spans}), 1)
    received, merged, answered = (
        _length(_union(shard.of(kind))) / per_ms for kind in (SpanKind.RECEIVE, SpanKind.MERGE, SpanKind.ANSWER)
    )
    return ShardReport(shard.place, received, merged, answered, shard.peak_bytes)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]


# --- Spans of all processes on one clock ------------------------------------------------------------------------------


def _processes(trace: JobTrace) -> list[_Process]:
    """Workers by slot, then shards; parts of one process are put together."""
    parts: dict[tuple[str, int, str, int], list[ProcessTrace]] = defaultdict(list)
    for part in trace.processes:
        parts[part.kind, part.place, part.host, part.pid].append(part)
    order = sorted(parts, key=lambda key: (key[0] != "worker", *key[1:]))
    return [
        _Process(
            kind,
            place,
            host,
            pid,
            max(part.peak_bytes for part in parts[kind, place, host, pid]),
            max(part.dropped for part in parts[kind, place, host, pid]),
            tuple(_in_rows(_begun(_spans(parts[kind, place, host, pid])))),
        )
        for kind, place, host, pid in order
    ]


def _spans(parts: Iterable[ProcessTrace]) -> list[_Span]:
    found = []
    for part in parts:
        base = 1000 * part.start_us
        for span in part.spans:
            begin, end = base + span.begin_ns, base + max(span.begin_ns, span.end_ns)
            name, thread = part.names[span.name], part.threads[span.thread]
            found.append(_Span(span.kind, name, thread, span.step, span.slot, begin, end, begin))
    return sorted(found, key=lambda span: (span.begin, span.end))


def _keys(span: _Span) -> list[str]:
    return span.name.partition(" ")[2].split(", ")


def _begun(spans: list[_Span]) -> Iterator[_Span]:
    """Fetches begin once a gradient of their keys is being sent."""
    sent: dict[tuple[int, str], int] = {}
    for span in spans:
        if span.kind is SpanKind.SEND:
            for key in _keys(span):
                sent.setdefault((span.step, key), span.begin)
    for span in spans:
        begin = span.begin
        if span.kind is SpanKind.FETCH:
            earliest = [sent[span.step - 1, key] for key in _keys(span) if (span.step - 1, key) in sent]
            begin = min(max(span.begin, min(earliest, default=0)), span.end)
        yield _Span(span.kind, span.name, span.row, span.step, span.slot, begin, span.end, span.begin)


def _in_rows(spans: Iterable[_Span]) -> Iterator[_Span]:
    """Communication overlaps itself: each span goes to the first row that is free."""
    free: dict[SpanKind, list[int]] = defaultdict(list)
    for span in sorted(spans, key=lambda one: (one.begin, one.end)):
        row = span.row
        if span.kind in _COMMUNICATION:
            ends = free[span.kind]
            number = next((each for each, end in enumerate(ends) if end <= span.begin), len(ends))
            ends[number : number + 1] = [span.end]
            row = f"{span.kind.value} {number + 1}"
        yield _Span(span.kind, span.name, row, span.step, span.slot, span.begin, span.end, span.asked)


Stretch = tuple[int, int]


def _union(spans: Iterable[_Span]) -> list[Stretch]:
    """The time that any of them covers, as stretches in their order."""
    found: list[Stretch] = []
    for begin, end in sorted((span.begin, span.end) for span in spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _without(stretches: Iterable[Stretch], others: Sequence[Stretch]) -> Iterator[Stretch]:
    """What of the stretches none of the others, which are in their order, covers."""
    ends = [end for _, end in others]
    for begin, end in stretches:
        at = begin
        for number in range(bisect_right(ends, begin), len(others)):
            low, high = others[number]
            if low >= end:
                break
            if low > at:
                yield at, low
            at = max(at, high)
        if at < end:
            yield at, end


def _length(stretches: Iterable[Stretch]) -> int:
    return sum(end - begin for begin, end in stretches)


# --- The file for Perfetto --------------------------------------------------------------------------------------------


def perfetto(trace: JobTrace) -> dict[str, Any]:
    """The trace in the Trace Event Format, which https://ui.perfetto.dev and chrome://tracing open.

    Arrows lead from a send to the shard that read it and merged it, and from the merge over the answer to the fetch and
    to what was computed once it was there.
    """
    found = _processes(trace)
    start = min((span.begin for process in found for span in process.spans), default=0)
    events: list[dict[str, Any]] = []
    rows: dict[tuple[int, str], int] = {}
    numbers = {id(process): _number(process) for process in found}
    for process in found:
        number = numbers[id(process)]
        events.append(_named("process_name", number, 0, f"{process.name} ({process.host}, pid {process.pid})"))
        events.append(
            {"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0, "args": {"sort_index": number}}
        )
        for span in process.spans:
            row = rows.setdefault((number, span.row), len(rows) + 1)
            events.append(
                {
                    "ph": "X",
                    "name": span.name,
                    "cat": span.kind.value,
                    "pid": number,
                    "tid": row,
                    "ts": (span.begin - start) / 1000,
                    "dur": (span.end - span.begin) / 1000,
                    "args": {"step": span.step, "asked_us": (span.asked - start) / 1000},
                }
            )
    events += [_named("thread_name", number, row, name) for (number, name), row in rows.items()]
    for flow, places in enumerate(chain(_to_merges(found), _to_kernels(found)), 1):
        for place, (process, span) in enumerate(places):
            phase = "s" if place == 0 else "f" if place == len(places) - 1 else "t"
            number = numbers[id(process)]
            event = {"ph": phase, "id": flow, "name": "data", "cat": "data", "pid": number}
            event |= {"tid": rows[number, span.row], "ts": (_arrow(span) - start) / 1000}
            events.append(event | ({"bp": "e"} if phase != "s" else {}))
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"report": report_of(trace).as_json()}}


def _arrow(span: _Span) -> float:
    """When an arrow touches it: within it, since spans of a row touch each other."""
    middle = (span.begin + span.end) / 2
    if span.kind is SpanKind.SEND:
        return min(middle, span.begin + 500)
    return max(middle, span.end - 500) if span.kind is SpanKind.FETCH else middle


def _number(process: _Process) -> int:
    return process.place + 1 + (_SHARDS_AFTER if process.kind == "shard" else 0)


def _named(kind: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": row, "args": {"name": name}}


_Place = tuple[_Process, _Span]


def _first_from(spans: Sequence[_Span], at: int) -> _Span | None:
    """The first, of a shard's spans in their order, that begins at a time or after it."""
    place = bisect_left(spans, at, key=lambda span: span.begin)
    return spans[place] if place < len(spans) else None


def _last_until(spans: Sequence[_Span], at: int) -> _Span | None:
    """The last, of spans in the order of their ends, that ends at a time or before it."""
    place = bisect_right(spans, at, key=lambda span: span.end)
    return spans[place - 1] if place else None


def _to_merges(found: Sequence[_Process]) -> Iterator[list[_Place]]:
    """From each send to each shard that has read it before the send was done, and to what that one merged next."""
    for shard in (each for each in found if each.kind == "shard"):
        merged, received = shard.of(SpanKind.MERGE), shard.of(SpanKind.RECEIVE)
        for worker in (each for each in found if each.kind == "worker"):
            of_slot = [span for span in received if span.slot == worker.place]
            for sent in worker.of(SpanKind.SEND):
                read = _first_from(of_slot, sent.begin)
                if read is None or read.begin > sent.end:
                    continue
                merge = _first_from(merged, read.end)
                yield [(worker, sent), (shard, read), *([(shard, merge)] if merge is not None else [])]


def _to_kernels(found: Sequence[_Process]) -> Iterator[list[_Place]]:
    """From what a shard merged last before it answered a fetch, over the answer, to what was computed next."""
    for worker in (each for each in found if each.kind == "worker"):
        computed = sorted(worker.of(SpanKind.COMPUTE), key=lambda span: span.begin)
        begins = [span.begin for span in computed]
        for fetched in worker.of(SpanKind.FETCH):
            place = bisect_left(begins, fetched.end)
            after = [(worker, computed[place])] if place < len(computed) else []
            for shard in (each for each in found if each.kind == "shard"):
                to_slot = [span for span in shard.of(SpanKind.ANSWER) if span.slot == worker.place]
                answer = _last_until(to_slot, fetched.end)
                if answer is None or answer.end < fetched.begin:
                    continue
                merge = _last_until(shard.of(SpanKind.MERGE), answer.end)
                yield [*([(shard, merge)] if merge is not None else []), (shard, answer), (worker, fetched), *after]
