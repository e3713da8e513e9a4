"""Daemons' log lines for people: the JSON that they write where no terminal reads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

UNSHOWN = frozenset({"event", "level", "timestamp", "daemon", "logger", "exception"})
"""What stands elsewhere in the line, or is known to who asks for one daemon's lines."""


def readable(line: str) -> str:
    """`error the server is away url=http://...`, and a traceback below it; a line that is no record, as it is."""
    record = _record(line)
    if record is None:
        return line
    fields = (f"{key}={value}" for key, value in record.items() if key not in UNSHOWN)
    first = " ".join([str(record.get("level", "")), str(record["event"]), *fields]).strip()
    exception = record.get("exception")
    return f"{first}\n{exception}" if exception else first


def telling(lines: Iterable[str], most: int) -> list[str]:
    """Of a daemon's last lines the newest that may be about its end, each on one line: errors before all others.

    What is no record is an error, such as the last line of a traceback, whose frames are left out. A warning that
    repeats is about something else.
    """
    said = [(_one_line(line), _is_error(line)) for line in lines if line.strip() and not line[0].isspace()]
    count = Counter(text for text, _ in said)
    errors = list(dict.fromkeys(text for text, is_error in said if is_error))
    others = [text for text, is_error in said if not is_error and count[text] == 1]
    return (others + errors)[-most:]


def _one_line(line: str) -> str:
    record = _record(line)
    exception = str(record.get("exception") or "").strip() if record else ""
    first = readable(line).splitlines()[0]
    return f"{first}: {exception.splitlines()[-1]}" if exception else first


def _is_error(line: str) -> bool:
    record = _record(line)
    return record is None or record.get("level") in {"error", "critical"}


def _record(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "event" in record else None
