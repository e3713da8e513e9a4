"""What schemathesis cannot draw from a schema: a graph with its data, a safetensors document. Loaded by its process."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import schemathesis
from pydantic import ValidationError
from safetensors.numpy import save

from server_specs import spec_json
from weft.api.job import JobSpec

DOCUMENT = save({"b": np.zeros(3, np.float32)})


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """What would be refused for its random graph becomes a job that can run, in all else as it was drawn."""
    name = context.operation.definition.raw["operationId"]
    if name in {"create_upload", "set_values"}:
        return DOCUMENT
    if name == "heartbeat" and isinstance(body, dict) and isinstance(body.get("wait_s"), float | int):
        return {**body, "wait_s": min(body["wait_s"], 0)}  # the server would wait so long for news
    return runnable(body) if name == "submit_job" and is_job(body) else body


@schemathesis.hook
def map_query(context: Any, query: Any) -> Any:
    """A stream of events ends with its job, which nobody runs here."""
    if context.operation.definition.raw["operationId"] == "get_events" and isinstance(query, dict):
        return {**query, "format": "json"} if query.get("format", "sse") == "sse" else query
    return query


def is_job(body: Any) -> bool:
    """Whether it is one by the schema: what was drawn to be wrong stays so."""
    try:
        JobSpec.model_validate_json(json.dumps(body), strict=True)
    except (ValidationError, TypeError, ValueError):
        return False
    return True


def runnable(body: dict[str, Any]) -> dict[str, Any]:
    job = spec_json(os.environ["WEFT_FUZZ_DATA"])
    given = {"graph", "loss", "metrics", "data", "init_from", "resume", "stop_when", "keep_best", "optimizer"}
    return {**job, **{name: value for name, value in body.items() if name not in given}}


@schemathesis.check
def valid_by_its_schema(context: Any, response: Any, case: Any) -> None:
    """What was drawn to be right is refused for its content alone, or for what only a validator can say."""
    drawn = getattr(case.meta, "generation", None)
    is_right = drawn is not None and drawn.mode.value == "positive"
    if is_right and response.status_code == 422 and response.json()["code"] == "invalid-request":
        told = response.json()["detail"]
        is_beyond = told.startswith("/optimizer") or any(each in told for each in BEYOND_A_SCHEMA)
        assert is_beyond, f"the schema allows it, and the server does not: {told}"


BEYOND_A_SCHEMA = (
    "are none",  # rows that end before they begin
    "share their parameters by shards",
    "a power of two",
    "is none of its lists",  # a span's name or thread is an index of another list
)
"""Relations between numbers, which JSON Schema has no words for; so are the ranges of schedules, of an optimizer."""
