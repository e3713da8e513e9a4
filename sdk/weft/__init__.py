"""weft: train computation graphs on a cluster. Send a graph, not code.

Build a graph from expressions (`weft.input`, `weft.ops`, `weft.nn`), submit it through a `Client`, watch it train, get
its parameters. `Cluster` starts all daemons on this machine. Names are imported when they are first used, so that
`import weft` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft import nn, ops
    from weft.api.data import DataSpec
    from weft.api.job import Job, JobSpec
    from weft.api.lifecycle import JobState
    from weft.api.rule import Adam, Sgd
    from weft.client import Client
    from weft.cluster import Cluster
    from weft.cut import cut
    from weft.data import numpy_data
    from weft.errors import (
        ClusterError,
        ConflictError,
        ConnectError,
        EvaluatorError,
        ForbiddenError,
        InvalidRequestError,
        JobCancelledError,
        JobError,
        JobFailedError,
        NotFoundError,
        ProblemError,
        ProtocolError,
        ServerFaultError,
        UnauthenticatedError,
        UrlError,
        UnavailableError,
        WaitTimeoutError,
        WeftError,
    )
    from weft.expression import Expression, Group, constant, graph, group, input, parameter  # noqa: A004 - ONNX's words
    from weft.job_handle import JobHandle, Values
    from weft_graph.errors import DTypeError, GraphError, ShapeError
    from weft_graph.types import BATCH

_HOMES: dict[str, str] = {
    **dict.fromkeys(("nn", "ops"), ""),
    **dict.fromkeys(("DataSpec",), "weft.api.data"),
    **dict.fromkeys(("Job", "JobSpec"), "weft.api.job"),
    **dict.fromkeys(("JobState",), "weft.api.lifecycle"),
    **dict.fromkeys(("Adam", "Sgd"), "weft.api.rule"),
    **dict.fromkeys(("Client",), "weft.client"),
    **dict.fromkeys(("Cluster",), "weft.cluster"),
    **dict.fromkeys(("cut",), "weft.cut"),
    **dict.fromkeys(("numpy_data",), "weft.data"),
    **dict.fromkeys(
        (
            "ClusterError",
            "ConflictError",
            "ConnectError",
            "EvaluatorError",
            "ForbiddenError",
            "InvalidRequestError",
            "JobCancelledError",
            "JobError",
            "JobFailedError",
            "NotFoundError",
            "UnavailableError",
            "ProblemError",
            "ProtocolError",
            "ServerFaultError",
            "UnauthenticatedError",
            "UrlError",
            "WaitTimeoutError",
            "WeftError",
        ),
        "weft.errors",
    ),
    **dict.fromkeys(
        ("Expression", "Group", "constant", "graph", "group", "input", "parameter"),
        "weft.expression",
    ),
    **dict.fromkeys(("JobHandle", "Values"), "weft.job_handle"),
    **dict.fromkeys(("DTypeError", "GraphError", "ShapeError"), "weft_graph.errors"),
    **dict.fromkeys(("BATCH",), "weft_graph.types"),
}
"""Where each public name lives; a module of its own for the empty string."""

__all__ = [
    "BATCH",
    "Adam",
    "Client",
    "Cluster",
    "ClusterError",
    "ConflictError",
    "ConnectError",
    "DTypeError",
    "DataSpec",
    "EvaluatorError",
    "Expression",
    "ForbiddenError",
    "GraphError",
    "Group",
    "InvalidRequestError",
    "Job",
    "JobCancelledError",
    "JobError",
    "JobFailedError",
    "JobHandle",
    "JobSpec",
    "JobState",
    "NotFoundError",
    "ProblemError",
    "ProtocolError",
    "ServerFaultError",
    "Sgd",
    "ShapeError",
    "UnauthenticatedError",
    "UnavailableError",
    "Values",
    "WaitTimeoutError",
    "WeftError",
    "constant",
    "cut",
    "graph",
    "group",
    "input",
    "nn",
    "numpy_data",
    "ops",
    "parameter",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name) if home else importlib.import_module(f"{__name__}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
