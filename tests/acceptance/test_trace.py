"""The trace of a job of two workers, over real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from jsonschema import validate

import weft
from acceptance_place import Place

NUMBER = {"type": "number", "minimum": 0}
EVENT: dict[str, Any] = {
    "type": "object",
    "required": ["ph", "name", "pid", "tid"],
    "properties": {"name": {"type": "string", "minLength": 1}, "pid": {"type": "integer"}, "tid": {"type": "integer"}},
    "oneOf": [
        {
            "properties": {"ph": {"const": "M"}, "args": {"type": "object", "minProperties": 1}},
            "required": ["args"],
        },
        {"properties": {"ph": {"const": "X"}, "ts": NUMBER, "dur": NUMBER}, "required": ["ts", "dur", "cat"]},
        {
            "properties": {"ph": {"enum": ["s", "t", "f"]}, "ts": NUMBER, "id": {"type": "integer"}},
            "required": ["ts", "id", "cat"],
        },
    ],
}
"""What the Trace Event Format asks of the kinds of events that are written."""


def length(stretches: list[tuple[float, float]], without: list[tuple[float, float]]) -> float:
    """The time that some cover and others do not, by looking at each moment at which anything begins or ends."""
    at = sorted({end for stretch in [*stretches, *without] for end in stretch})
    total = 0.0
    for low, high in pairwise(at):
        covered = any(begin <= low and high <= end for begin, end in stretches)
        total += high - low if covered and not any(begin <= low and high <= end for begin, end in without) else 0
    return total


@pytest.fixture(scope="module")
def job(place: Place, example: ModuleType) -> Iterator[weft.JobHandle]:
    loss, accuracy = example.build()
    with place.cluster.client() as client:
        job = client.submit(
            loss, metrics={"accuracy": accuracy}, data=place.digits, workers=2, shards=2, steps=30, batch_size=64
        )
        job.wait(timeout_s=120)
        yield job


def test_the_file_is_one_that_perfetto_opens_and_its_overlap_is_the_reports(job: weft.JobHandle, place: Place) -> None:
    place.printed("trace", job.id, "-o", "trace.json")
    document = json.loads((place.folder / "trace.json").read_text())
    events = document["traceEvents"]
    validate(events, {"type": "array", "items": EVENT})
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [name.split(" (")[0] for name in names.values()] == ["worker 0", "worker 1", "shard 0", "shard 1"]
    spans = [event for event in events if event["ph"] == "X"]
    for number, worker in ((1, job.report().workers[0]), (2, job.report().workers[1])):
        of = [(s["cat"], (s["ts"], s["ts"] + s["dur"])) for s in spans if s["pid"] == number]
        computed = [at for kind, at in of if kind == "compute"]
        travelled = [at for kind, at in of if kind in {"fetch", "send"}]
        exposed, whole = length(travelled, computed), length(travelled, [])
        assert worker.steps == 10
        assert worker.overlap == pytest.approx(1 - exposed / whole, abs=1e-3)
        assert worker.exposed_ms * 10 == pytest.approx(exposed / 1000, rel=1e-3)


def test_each_arrow_begins_and_ends_on_a_span_and_goes_forward(job: weft.JobHandle, place: Place) -> None:
    place.printed("trace", job.id, "-o", "arrows.json")
    events = json.loads((place.folder / "arrows.json").read_text())["traceEvents"]
    spans: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            spans.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    flows: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] in "stf":
            flows.setdefault(event["id"], []).append(event)
            at = event["ts"]
            assert any(begin - 0.001 <= at <= end + 0.001 for begin, end in spans[event["pid"], event["tid"]])
    assert len(flows) >= 20  # 10 steps of 2 workers; a value that was not waited for has no arrow
    for flow in flows.values():
        assert (flow[0]["ph"], flow[-1]["ph"]) == ("s", "f")
        assert [each["ts"] for each in flow] == sorted(each["ts"] for each in flow)


def test_the_report_names_what_took_the_time(job: weft.JobHandle, place: Place) -> None:
    told = place.printed("report", job.id)
    assert told.startswith("Steps 11 to 20, milliseconds a step\n")
    for part in ("worker 1", "shard 1", "overlap", "Slowest operators of worker 0", "peak memory"):
        assert part in told


def test_a_job_that_traces_nothing_says_so(place: Place, example: ModuleType) -> None:
    loss, _ = example.build()
    with place.cluster.client() as client:
        short = client.submit(loss, data=place.digits, steps=5)
        short.wait(timeout_s=60)
        with pytest.raises(weft.ConflictError, match=r"with its 5 steps and trace=.*it traces none"):
            short.report()
