"""Jobs to submit in the server's tests: a small linear classifier on a `.npz` of sixteen rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from weft.api.data import DataSpec, NumpySource, Rows
from weft.api.job import JobSpec, Merge, ParameterInfo
from weft.api.store import InitializerSpec, KeySpec
from weft_graph.ir import Graph, Initializer, Input, Node, Parameter
from weft_graph.json_form import graph_to_json
from weft_graph.types import BATCH, DType, TensorType
from weft_server.planning.plan import JobPlan

ROWS, FEATURES, CLASSES = 16, 4, 3


def linear() -> Graph:
    """x -> Gemm -> mean cross-entropy with y; parameters `w` (4, 3) and `b` (3,)."""
    draw = Initializer("RandomUniform", {"low": -0.5, "high": 0.5})
    return Graph(
        name="linear",
        inputs=(
            Input("x", TensorType(DType.FLOAT32, (BATCH, FEATURES))),
            Input("y", TensorType(DType.INT64, (BATCH,))),
        ),
        parameters=(
            Parameter("w", TensorType(DType.FLOAT32, (FEATURES, CLASSES)), draw),
            Parameter("b", TensorType(DType.FLOAT32, (CLASSES,)), draw),
        ),
        nodes=(
            Node("Gemm", "scores", ("x", "w", "b"), ("scores",)),
            Node("SoftmaxCrossEntropyLoss", "cross_entropy", ("scores", "y"), ("loss",)),
        ),
        outputs=("loss", "scores"),
    )


def save_rows(path: Path, **columns: np.ndarray) -> Path:
    """Writes a `.npz` with the columns `images` and `labels`, or those given."""
    draw = np.random.default_rng(0)
    defaults = {
        "images": draw.normal(size=(ROWS, FEATURES)).astype(np.float32),
        "labels": draw.integers(0, CLASSES, ROWS),
    }
    np.savez(path, **{**defaults, **columns})
    return path


def spec_json(data: Path, /, **changes: Any) -> dict[str, Any]:
    """A job that can run, as JSON: twelve rows to train on in batches of four, four to evaluate on, two passes."""
    document: dict[str, Any] = {
        "name": "linear",
        "graph": graph_to_json(linear()),
        "loss": "loss",
        "data": {
            "source": {"type": "numpy", "path": str(data)},
            "columns": {"x": "images", "y": "labels"},
            "train": {"start": 0, "stop": 12},
            "evaluate": {"start": 12, "stop": 16},
            "batch_size": 4,
        },
        "optimizer": {"name": "sgd", "lr": 0.1},
        "run": {"epochs": 2},
        "parallelism": {"workers": 2, "shards": 1},
        "max_restarts": 0,
        "snapshot_every_s": None,
    }
    return {**document, **changes}


def spec(data: Path, /, **changes: Any) -> JobSpec:
    return JobSpec.model_validate(spec_json(data, **changes))


def plan(*, workers: int = 2, shards: int = 1, steps: int = 6, **changes: Any) -> JobPlan:
    """A checked job without a graph, for the controller: it never looks into the programs."""
    data = DataSpec(
        source=NumpySource(path="rows.npz"), columns={"x": "images"}, train=Rows(start=0, stop=10), batch_size=4
    )
    key = KeySpec(
        key="w",
        dtype="float32",
        shape=[FEATURES, CLASSES],
        initializer=InitializerSpec(op_type="ConstantOfShape", attributes={"value": 0.0}),
        update="rule",
        priority=0,
        slots=list(range(workers)),
    )
    fields: dict[str, Any] = {
        "name": "linear",
        "programs": {},
        "data": data,
        "seed": 1,
        "steps": steps,
        "steps_per_epoch": 3,
        "evaluate_every": None,
        "workers": workers,
        "shards": shards,
        "merge": Merge.SLOT,
        "slice_bytes": 128 * 1024,
        "keys": [key],
        "parameters": [ParameterInfo(name="w", dtype="float32", shape=[FEATURES, CLASSES], trainable=True)],
        "rule": "sgd",
        "hyper": {"lr": 0.1},
    }
    return JobPlan(**{**fields, **changes})
