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
    from weft.client import Client
    from weft.cluster import Cluster
    from weft.collect import cut
    from weft.data import numpy_data
    from weft.errors import (
        ArgumentError,
        ClosedError,
        ClusterError,
        ConflictError,
        ConnectError,
        EvaluatorError,
        FeedError,
        ForbiddenError,
        InvalidRequestError,
        JobCancelledError,
        JobError,
        JobFailedError,
        MissingPackageError,
        ModuleRefusedError,
        NotFoundError,
        ProblemError,
        ProtocolError,
        ServerFaultError,
        UnauthenticatedError,
        UnavailableError,
        UrlError,
        WaitTimeoutError,
        WeftError,
    )
    from weft.expression import Expression, Group, graph, group
    from weft.fitting import fit, submit
    from weft.job_handle import JobHandle, Values
    from weft.leaves import constant, input, parameter  # noqa: A004 - ONNX's words
    from weft.model import Model
    from weft.onnx_model import from_onnx
    from weft.optimizer_graph import custom_optimizer
    from weft.optimizers import LAMB, LARS, SGD, Adagrad, Adam, AdamW, Ftrl, RMSprop
    from weft.parameter_file import load
    from weft.schedules import cosine, exponential, linear, piecewise, polynomial, warmup
    from weft.submission import EMA, Communication, Recovery, job_spec
    from weft.torch_model import from_torch
    from weft.trainable import Trainable
    from weft_graph.errors import DTypeError, GraphError, GraphRefusedError, ShapeError
    from weft_graph.losses.comparison import Loss
    from weft_graph.types import BATCH

_NAMES: dict[str, tuple[str, ...]] = {
    "weft.api.data": ("DataSpec",),
    "weft.api.job": ("Job", "JobSpec"),
    "weft.api.lifecycle": ("JobState",),
    "weft.client": ("Client",),
    "weft.cluster": ("Cluster",),
    "weft.collect": ("cut",),
    "weft.data": ("numpy_data",),
    "weft.errors": (
        "ArgumentError",
        "ClosedError",
        "ClusterError",
        "ConflictError",
        "ConnectError",
        "EvaluatorError",
        "FeedError",
        "ForbiddenError",
        "InvalidRequestError",
        "JobCancelledError",
        "JobError",
        "JobFailedError",
        "MissingPackageError",
        "ModuleRefusedError",
        "NotFoundError",
        "ProblemError",
        "ProtocolError",
        "ServerFaultError",
        "UnauthenticatedError",
        "UnavailableError",
        "UrlError",
        "WaitTimeoutError",
        "WeftError",
    ),
    "weft.expression": ("Expression", "Group", "graph", "group"),
    "weft.fitting": ("fit", "submit"),
    "weft.job_handle": ("JobHandle", "Values"),
    "weft.leaves": ("constant", "input", "parameter"),
    "weft.model": ("Model",),
    "weft.onnx_model": ("from_onnx",),
    "weft.parameter_file": ("load",),
    "weft.optimizers": ("Adagrad", "Adam", "AdamW", "Ftrl", "LAMB", "LARS", "RMSprop", "SGD"),
    "weft.schedules": ("cosine", "exponential", "linear", "piecewise", "polynomial", "warmup"),
    "weft.submission": ("Communication", "EMA", "Recovery", "job_spec"),
    "weft.torch_model": ("from_torch",),
    "weft.trainable": ("Trainable",),
    "weft.optimizer_graph": ("custom_optimizer",),
    "weft_graph.errors": ("DTypeError", "GraphError", "GraphRefusedError", "ShapeError"),
    "weft_graph.losses.comparison": ("Loss",),
    "weft_graph.types": ("BATCH",),
}
"""Which module has which public names."""

_MODULES = ("nn", "ops")
"""Public names that are modules themselves."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "BATCH",
    "EMA",
    "LAMB",
    "LARS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "ArgumentError",
    "Client",
    "ClosedError",
    "Cluster",
    "ClusterError",
    "Communication",
    "ConflictError",
    "ConnectError",
    "DTypeError",
    "DataSpec",
    "EvaluatorError",
    "Expression",
    "FeedError",
    "ForbiddenError",
    "Ftrl",
    "GraphError",
    "GraphRefusedError",
    "Group",
    "InvalidRequestError",
    "Job",
    "JobCancelledError",
    "JobError",
    "JobFailedError",
    "JobHandle",
    "JobSpec",
    "JobState",
    "Loss",
    "MissingPackageError",
    "Model",
    "ModuleRefusedError",
    "NotFoundError",
    "ProblemError",
    "ProtocolError",
    "RMSprop",
    "Recovery",
    "ServerFaultError",
    "ShapeError",
    "Trainable",
    "UnauthenticatedError",
    "UnavailableError",
    "UrlError",
    "Values",
    "WaitTimeoutError",
    "WeftError",
    "constant",
    "cosine",
    "custom_optimizer",
    "cut",
    "exponential",
    "fit",
    "from_onnx",
    "from_torch",
    "graph",
    "group",
    "input",
    "job_spec",
    "linear",
    "load",
    "nn",
    "numpy_data",
    "ops",
    "parameter",
    "piecewise",
    "polynomial",
    "submit",
    "warmup",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        from weft.arguments import no_attribute

        raise AttributeError(no_attribute(__name__, name, () if name.startswith("__") else __all__))
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
