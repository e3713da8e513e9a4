"""Daemons' log lines for people: the JSON that they write where no terminal reads."""

from __future__ import annotations

import json
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


def _record(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "event" in record else None
