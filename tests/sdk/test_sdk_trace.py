"""What a report and a file for Perfetto make of spans whose answer is known."""

from __future__ import annotations

from typing import Any

import pytest

from weft.api.trace import JobTrace, ProcessTrace, Span, SpanKind, TraceWindow
from weft.trace import perfetto, report_of

MS = 1_000_000

S = tuple[SpanKind, str, int, int, float, float]


def process(kind: Any, place: int, *spans: S, start_us: int = 0) -> ProcessTrace:
    """Spans of (kind, name, step, slot, begin, end), times in milliseconds since 1970."""
    names = list(dict.fromkeys(span[1] for span in spans))
    told = [
        Span(
            kind_,
            names.index(name),
            0,
            step,
            slot,
            round(begin * MS) - 1000 * start_us,
            round(end * MS) - 1000 * start_us,
        )
        for kind_, name, step, slot, begin, end in spans
    ]
    return ProcessTrace(
        kind=kind,
        place=place,
        host="here",
        pid=place,
        start_us=start_us,
        peak_bytes=1 << 20,
        names=names,
        threads=["main"],
        spans=told,
    )


@pytest.fixture
def trace() -> JobTrace:
    """Two steps of one worker. Step 1 sends at 4, computes until 6; the fetch of step 2 was called at 1, is answered at
    8, and step 2 computes from 9 to 12."""
    worker = process(
        "worker",
        0,
        (SpanKind.COMPUTE, "Session forward", 1, -1, 0, 4),
        (SpanKind.SEND, "Send w", 1, -1, 4, 7),
        (SpanKind.COMPUTE, "MatMul backward", 1, -1, 4, 6),
        (SpanKind.FETCH, "Fetch w", 2, -1, 1, 8),
        (SpanKind.COMPUTE, "Session forward", 2, -1, 9, 12),
    )
    shard = process(
        "shard",
        0,
        (SpanKind.RECEIVE, "message of slot 0", 1, 0, 5, 5.5),
        (SpanKind.MERGE, "merge", 1, -1, 5.5, 6.5),
        (SpanKind.ANSWER, "message to slot 0", 1, 0, 6.5, 7.5),
        start_us=4000,
    )
    return JobTrace(window=TraceWindow(first_step=1, steps=2), processes=[shard, worker])


def test_a_report_adds_up_what_was_computed_and_what_of_communication_was_exposed(trace: JobTrace) -> None:
    [worker], [shard] = report_of(trace).workers, report_of(trace).shards
    assert worker.steps == 2
    assert worker.step_ms == pytest.approx(6)
    assert worker.compute_ms == pytest.approx(4.5)
    # On their way from 4, when the gradient left, to 8; computed until 6.
    assert worker.communication_ms == pytest.approx(2)
    assert worker.exposed_ms == pytest.approx(1)
    assert worker.overlap == pytest.approx(0.5)
    assert [(each.name, each.ms) for each in worker.slowest] == [("Session forward", 3.5), ("MatMul backward", 1.0)]
    assert (shard.receive_ms, shard.merge_ms, shard.answer_ms) == pytest.approx((0.5, 1.0, 1.0))


def test_parts_of_one_process_are_one(trace: JobTrace) -> None:
    shard, worker = trace.processes
    halves = [worker.model_copy(update={"spans": worker.spans[at : at + 2]}) for at in range(0, 5, 2)]
    assert report_of(trace.model_copy(update={"processes": [*halves, shard]})) == report_of(trace)


def test_arrows_lead_from_the_gradient_to_what_is_computed_with_the_merged_value(trace: JobTrace) -> None:
    events = perfetto(trace)["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    flows: dict[int, list[str]] = {}
    for event in events:
        if event["ph"] in "stf":
            on = [s for s in spans if (s["pid"], s["tid"]) == (event["pid"], event["tid"])]
            [name] = [s["name"] for s in on if s["ts"] <= event["ts"] <= s["ts"] + s["dur"]][:1]
            flows.setdefault(event["id"], []).append(name)
    assert list(flows.values()) == [
        ["Send w", "message of slot 0", "merge"],
        ["merge", "message to slot 0", "Fetch w", "Session forward"],
    ]


def test_a_report_reads_as_a_table(trace: JobTrace) -> None:
    lines = str(report_of(trace)).splitlines()
    assert lines[0] == "Steps 1 to 2, milliseconds a step"
    assert lines[3].split() == ["worker", "0", "6.00", "4.50", "2.00", "1.00", "50%", "0.00", "1", "MiB"]
    assert "shard 0     0.50   1.00    1.00        1 MiB" in lines


@pytest.mark.parametrize(("name", "thread"), [(99, 0), (-1, 0), (0, 1)])
def test_a_span_whose_name_is_in_no_list_is_refused(name: int, thread: int) -> None:
    span = Span(SpanKind.COMPUTE, name, thread, 1, -1, 0, 1)
    with pytest.raises(ValueError, match=rf"spans\[0\]: name {name} or thread {thread} is none of its lists"):
        ProcessTrace(
            kind="worker", place=0, host="", pid=1, start_us=0, peak_bytes=0, names=["a"], threads=["b"], spans=[span]
        )
