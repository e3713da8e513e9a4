"""Daemons' records as people read them."""

from __future__ import annotations

import json

import pytest

from weft.log_lines import readable, telling


def test_a_record_is_its_level_event_and_fields() -> None:
    record = {"url": "http://x", "tries": 3, "event": "no answer", "level": "error", "timestamp": "t", "daemon": "d"}
    assert readable(json.dumps(record)) == "error no answer url=http://x tries=3"


def test_a_traceback_stands_below_in_its_own_lines() -> None:
    record = {"event": "broke", "level": "error", "exception": "Traceback:\n  line\nValueError: x"}
    assert readable(json.dumps(record)) == "error broke\nTraceback:\n  line\nValueError: x"


@pytest.mark.parametrize("line", ["Killed", "", "{", "{'a': 1}", '{"a": 1}', "[1]", '{"event"'])
def test_what_is_no_record_stays_as_it_is(line: str) -> None:
    assert readable(line) == line


def record(level: str, event: str, **fields: str) -> str:
    return json.dumps({"event": event, "level": level, **fields})


def test_what_tells_of_an_end_is_errors_first_and_no_warning_that_repeats() -> None:
    lines = [
        record("error", "no way on", exception="Traceback:\n  line\nValueError: x"),
        record("warning", "a shard is away"),
        record("info", "started"),
        record("warning", "a shard is away"),
    ]
    assert telling(lines, 1) == ["error no way on: ValueError: x"]
    assert telling(lines, 4) == ["info started", "error no way on: ValueError: x"]
    assert telling(lines[1:], 3) == ["info started"]
    assert telling([lines[1], lines[3]], 3) == telling([], 3) == []
    trace = ["Traceback (most recent call last):", '  File "x", line 1', "    call()", "ImportError: none"]
    assert telling(trace, 1) == ["ImportError: none"]
