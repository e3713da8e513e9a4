"""Examples of the API's documents: what a call sends and what comes back, told as one small job.

They are written out, so that they show what travels; the tests hold them against the schemas and submit the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Json = Any

_JOB_ID, _UPLOAD_ID = "4f1c2a9be07d4e11", "0b6a7f0c9a1b4b21b3bd5c5c61b0a6a3"
_AGENT_ID, _ALLOCATION_ID = "9d3f0a6c5b7e4f12", "c81d5e2f7a904b36"

_PROCESS_TRACE = {
    "kind": "worker",
    "place": 0,
    "host": "worker-0",
    "pid": 4711,
    "start_us": 1_767_268_800_000_000,
    "peak_bytes": 150_000_000,
    "names": ["Gemm scores"],
    "threads": ["slot0-compute-0"],
    "spans": [["compute", 0, 0, 11, -1, 1_000, 41_000]],
}

PARAMETERS: Final[Mapping[str, Json]] = {
    "job": _JOB_ID,
    "upload": _UPLOAD_ID,
    "agent": _AGENT_ID,
    "allocation": _ALLOCATION_ID,
    "term": 1,
}
"""By the parameter's name."""

_DRAW = {"op_type": "RandomUniform", "attributes": {"low": -0.5, "high": 0.5}}
GRAPH: Final[Json] = {
    "format_version": 1,
    "opset": 28,
    "name": "linear",
    "inputs": [
        {"name": "x", "dtype": "float32", "shape": ["batch", 4]},
        {"name": "y", "dtype": "int64", "shape": ["batch"]},
    ],
    "parameters": [
        {"name": "w", "dtype": "float32", "shape": [4, 3], "trainable": True, "initializer": _DRAW},
        {"name": "b", "dtype": "float32", "shape": [3], "trainable": True, "initializer": _DRAW},
    ],
    "constants": [],
    "nodes": [
        {"op_type": "Gemm", "name": "scores", "inputs": ["x", "w", "b"], "outputs": ["scores"], "attributes": {}},
        {
            "op_type": "SoftmaxCrossEntropyLoss",
            "name": "cross_entropy",
            "inputs": ["scores", "y"],
            "outputs": ["loss"],
            "attributes": {},
        },
    ],
    "outputs": ["loss", "scores"],
}
SPEC: Final[Json] = {
    "name": "linear",
    "graph": GRAPH,
    "loss": "loss",
    "data": {
        "source": {"type": "numpy", "path": "/data/rows.npz"},
        "columns": {"x": "images", "y": "labels"},
        "train": {"start": 0, "stop": 12},
        "evaluate": {"start": 12, "stop": 16},
        "batch_size": 4,
    },
    "optimizer": {"name": "sgd", "lr": 0.1},
    "run": {"epochs": 2},
    "parallelism": {"workers": 2, "shards": 1},
}
JOB: Final[Json] = {
    "id": _JOB_ID,
    "name": "linear",
    "state": "running",
    "progress": {"step": 4, "steps": 6, "epoch": 1, "pass_number": 1},
    "metrics": {"train/loss": 1.07, "evaluate/loss": 1.09},
    "traffic": {"sent_bytes": 1920, "received_bytes": 2304},
    "workers": 2,
    "shards": 1,
    "created_at": "2026-01-01T12:00:00Z",
    "started_at": "2026-01-01T12:00:02Z",
}
_PENDING: Final[Json] = {
    **JOB,
    "state": "pending",
    "reason": "it waits for 2 workers: 0 are free",
    "progress": {"step": 0, "steps": 6, "epoch": 0, "pass_number": 0},
    "metrics": {},
    "started_at": None,
}
_UPLOAD: Final[Json] = {"id": _UPLOAD_ID, "size_bytes": 156, "expires_at": "2026-01-01T18:00:00Z"}
_TOKEN: Final[Json] = {
    "name": "reader",
    "scope": "viewer",
    "project": "default",
    "created_at": "2026-01-01T12:00:00Z",
}
_EVENT: Final[Json] = {
    "seq": 3,
    "at": "2026-01-01T12:00:02Z",
    "body": {"kind": "metric", "split": "train", "step": 3, "values": {"loss": 1.07}, "samples": 12},
}


def _one(value: Json) -> dict[str, Json]:
    return {"example": value}


EXAMPLES: Final[Mapping[str, Mapping[str, Mapping[str, Json]]]] = {
    "submit_job": {"request": _one(SPEC), "201": _one(_PENDING)},
    "list_jobs": {"200": _one({"jobs": [JOB], "next": None})},
    "get_job": {"200": _one(JOB)},
    "get_job_spec": {"200": _one(SPEC)},
    "cancel_job": {"200": _one({**JOB, "state": "cancelled", "ended_at": "2026-01-01T12:00:09Z"})},
    "stop_job": {"200": _one(JOB)},
    "scale_job": {"request": _one({"workers": 4}), "200": _one({**JOB, "workers": 4})},
    "list_parameters": {
        "200": _one({"parameters": [{"name": "w", "dtype": "float32", "shape": [4, 3], "trainable": True}]})
    },
    "get_events": {"200": _one({"events": [_EVENT], "after": 3, "ended": False})},
    "get_trace": {"200": _one({"window": {"first_step": 11, "steps": 1}, "processes": [_PROCESS_TRACE]})},
    "set_values": {"200": _one({"names": ["w"], "step": 5})},
    "create_upload": {"201": _one({**_UPLOAD, "names": ["w", "b"]})},
    "list_uploads": {"200": _one({"uploads": [_UPLOAD]})},
    "list_agents": {
        "200": _one(
            {
                "agents": [
                    {
                        "id": _AGENT_ID,
                        "kind": "worker",
                        "name": "worker-0",
                        "pid": 4711,
                        "state": "alive",
                        "registered_at": "2026-01-01T11:59:58Z",
                        "silent_s": 0.4,
                        "jobs": [_JOB_ID],
                    }
                ]
            }
        )
    },
    "read_model": {
        "201": _one(
            {
                "id": _UPLOAD_ID,
                "graph": GRAPH,
                "loss": "loss",
                "targets": ["y"],
                "init_from": {"upload": _UPLOAD_ID},
                "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 4]}],
                "outputs": [{"name": "scores", "dtype": "float32", "shape": ["batch", 3]}],
                "parameters": [{"name": "w", "dtype": "float32", "shape": [4, 3], "trainable": True}],
                "warnings": [],
            }
        )
    },
    "create_token": {
        "request": _one({"name": "reader", "scope": "viewer"}),
        "201": _one({**_TOKEN, "token": "weft_EXAMPLE"}),
    },
    "list_tokens": {"200": _one({"tokens": [_TOKEN]})},
    "healthz": {"200": _one({"status": "ok"})},
    "readyz": {"200": _one({"status": "ready"})},
    "register": {
        "request": _one({"kind": "worker", "name": "worker-0", "pid": 4711, "nonce": "5f0c2d"}),
        "201": _one({"id": _AGENT_ID, "heartbeat_interval_s": 1.0, "lost_after_s": 60.0}),
    },
    "heartbeat": {
        "request": _one({"known": 4294967297, "wait_s": 1.0}),
        "200": _one({"version": 4294967298, "allocations": []}),
    },
    "report": {
        "request": {
            "started": {"term": 1, "seq": 2, "event": "running", "step": 0},
            "progress": {
                "term": 1,
                "seq": 3,
                "step": 3,
                "metrics": [{"split": "train", "step": 3, "samples": 6, "sums": {"loss": 6.42}}],
            },
        }
    },
}
"""Operation -> `request` or the answer's status -> the examples of its JSON."""
