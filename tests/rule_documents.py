"""Update rules as documents, written down plainly: what a user who has no SDK would send."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

Document = dict[str, Any]


def rule_document(
    nodes: Sequence[tuple[str, str, tuple[str, ...]]],
    following: dict[str, str],
    *,
    state: dict[str, float] | None = None,
    hyper: dict[str, float] | None = None,
    constants: dict[str, Any] | None = None,
    dtype: str = "float64",
    shape: Sequence[str] = ("n",),
    attributes: dict[str, dict[str, Any]] | None = None,
) -> Document:
    """A rule of nodes (operator, name of node and output, inputs)."""
    state, hyper = state or {}, hyper or {}
    arrays = [{"name": name, "dtype": dtype, "shape": list(shape)} for name in ("weight", "gradient", *state)]
    numbers = [{"name": name, "dtype": dtype, "shape": []} for name in ("step", *hyper)]
    graph = {
        "format_version": 1,
        "opset": 28,
        "name": "rule",
        "inputs": arrays + numbers,
        "parameters": [],
        "constants": [constant(name, value, dtype) for name, value in (constants or {}).items()],
        "nodes": [
            {
                "op_type": op_type,
                "name": name,
                "inputs": list(inputs),
                "outputs": [name],
                "attributes": (attributes or {}).get(name, {}),
            }
            for op_type, name, inputs in nodes
        ],
        "outputs": list(dict.fromkeys(following.values())),
    }
    return {"name": "test", "graph": graph, "state": state, "hyper": hyper, "next": following}


def constant(name: str, value: Any, dtype: str) -> Document:
    """A number of the rule's element type, or an array of its own."""
    array = value if isinstance(value, np.ndarray) else np.asarray(value, dtype)
    data = base64.b64encode(array.tobytes()).decode("ascii")
    return {"name": name, "dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def momentum() -> Document:
    """v = momentum * v + g; w -= lr * v."""
    return rule_document(
        [
            ("Mul", "kept", ("momentum", "velocity")),
            ("Add", "v", ("kept", "gradient")),
            ("Mul", "move", ("lr", "v")),
            ("Sub", "w", ("weight", "move")),
        ],
        {"weight": "w", "velocity": "v"},
        state={"velocity": 0.0},
        hyper={"lr": 0.1, "momentum": 0.9},
    )


def normalized(dtype: str = "float64") -> Document:
    """w -= lr * g / sqrt(sum of g^2)."""
    return rule_document(
        [
            ("Mul", "square", ("gradient", "gradient")),
            ("ReduceSum", "total", ("square",)),
            ("Sqrt", "norm", ("total",)),
            ("Div", "unit", ("gradient", "norm")),
            ("Mul", "move", ("lr", "unit")),
            ("Sub", "w", ("weight", "move")),
        ],
        {"weight": "w"},
        hyper={"lr": 0.1},
        dtype=dtype,
        attributes={"total": {"keepdims": 0}},
    )


def outer() -> Document:
    """w - sum over rows of the outer product of the gradient with itself: n x n values on the way."""
    return rule_document(
        [
            ("Unsqueeze", "column", ("gradient", "one")),
            ("Mul", "square", ("column", "gradient")),
            ("ReduceSum", "total", ("square", "one")),
            ("Sub", "w", ("weight", "total")),
        ],
        {"weight": "w"},
        constants={"one": np.array([1])},
        attributes={"total": {"keepdims": 0}},
    )
