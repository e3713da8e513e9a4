"""Users' rules for the tests of generated kernels, as documents, each with what makes it hard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft_graph.ir import Constant, Graph, Input, Node
from weft_graph.json_form import graph_to_json
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.types import DType, TensorType
from written_rules import adam


def _rule(
    name: str,
    nodes: Sequence[Node],
    becomes: Mapping[str, str],
    *,
    state: Mapping[str, float] | None = None,
    hyper: Mapping[str, float] | None = None,
    constants: Sequence[Constant] = (),
) -> dict[str, Any]:
    state, hyper = dict(state or {}), dict(hyper or {})
    arrays = TensorType(DType.FLOAT32, ("n",))
    inputs = [Input(each, arrays) for each in ("weight", "gradient", *state)]
    inputs += [Input(each, TensorType(DType.FLOAT32, ())) for each in ("step", *hyper)]
    outputs = tuple(dict.fromkeys(becomes.values()))
    graph = Graph(name, tuple(inputs), (), tuple(nodes), outputs, tuple(constants))
    return {"name": name, "graph": graph_to_json(graph), "state": state, "hyper": hyper, "next": dict(becomes)}


def _number(name: str, value: float) -> Constant:
    return Constant(name, np.asarray(value, dtype=np.float32))


def user_rules() -> dict[str, dict[str, Any]]:
    """Documents by name."""
    descent = _rule(
        "descent",
        [
            Node("Mul", "scaled", ("gradient", "lr"), ("scaled",)),
            Node("Sub", "next", ("weight", "scaled"), ("next",)),
        ],
        {"weight": "next"},
        hyper={"lr": 0.1},
    )
    # Numbers worked out of the step; a sign; a choice; two states, one of which takes the other's place as it was.
    lion = _rule(
        "lion",
        [
            Node("Mul", "old", ("mean", "beta"), ("old",)),
            Node("Sub", "rest", ("one", "beta"), ("rest",)),
            Node("Mul", "new", ("gradient", "rest"), ("new",)),
            Node("Add", "mixed", ("old", "new"), ("mixed",)),
            Node("Sign", "direction", ("mixed",), ("direction",)),
            Node("Sqrt", "root", ("step",), ("root",)),
            Node("Div", "slower", ("lr", "root"), ("slower",)),
            Node("Mul", "moved", ("direction", "slower"), ("moved",)),
            Node("Greater", "up", ("gradient", "zero"), ("up",)),
            Node("Where", "chosen", ("up", "moved", "before"), ("chosen",)),
            Node("Sub", "next", ("weight", "chosen"), ("next",)),
            Node("Identity", "kept", ("mean",), ("kept",)),
        ],
        {"weight": "next", "mean": "mixed", "before": "kept"},
        state={"mean": 0.0, "before": 0.5},
        hyper={"lr": 0.1, "beta": 0.9},
        constants=[_number("one", 1.0), _number("zero", 0.0)],
    )
    # float16 on the way by name: it is rounded there, whatever the key's type.
    narrow = _rule(
        "narrow",
        [
            Node("Cast", "half", ("gradient",), ("half",), {"to": NUMBER_OF_DTYPE[DType.FLOAT16]}),
            Node("Cast", "single", ("half",), ("single",), {"to": NUMBER_OF_DTYPE[DType.FLOAT32]}),
            Node("Sub", "left", ("gradient", "single"), ("left",)),
            Node("Sub", "next", ("weight", "left"), ("next",)),
        ],
        {"weight": "next"},
    )
    # Names that end a comment, begin a line, and continue one: they are a user's.
    hostile = _rule(
        "evil #error */ \\",
        [
            Node("Tanh", "a */ x #error\\", ("gradient",), ("b */ #error??/",)),
            Node("Clip", "limit", ("b */ #error??/", "low", "high"), ("limited",)),
            Node("Sub", "next", ("weight", "limited"), ("next",)),
        ],
        {"weight": "next"},
        constants=[_number("low", -0.25), _number("high", float("inf"))],
    )
    # An epsilon that float16 does not have, and squares of gradients that it does not have.
    return {"descent": descent, "lion": lion, "hostile": hostile, "adam": adam.document, "narrow": narrow}
