"""Small graphs for the worker's tests, written with the IR's records."""

from __future__ import annotations

import numpy as np

from weft_graph.ir import Constant, Graph, Initializer, Input, Node, Parameter
from weft_graph.types import BATCH, DType, TensorType

FEATURES, HIDDEN, CLASSES = 6, 16, 3
METRICS = {"accuracy": "accuracy"}


def parameter(name: str, shape: tuple[int, ...], dtype: DType, *, bound: float = 0.5) -> Parameter:
    """A trainable parameter, uniform in (-bound, bound)."""
    draw = Initializer("RandomUniform", {"low": -bound, "high": bound})
    return Parameter(name, TensorType(dtype, shape), draw)


def running(name: str, value: float, dtype: DType) -> Parameter:
    """A running statistic of the hidden layer."""
    initializer = Initializer("ConstantOfShape", {"value": value})
    return Parameter(name, TensorType(dtype, (HIDDEN,)), initializer, trainable=False)


def classifier(dtype: DType, middle: list[Node], parameters: list[Parameter], constants: list[Constant]) -> Graph:
    """x -> Gemm -> `middle`, from `h0` to `h1` -> Gemm -> mean cross-entropy, and the share of right answers."""
    nodes = [
        Node("Gemm", "fc1", ("x", "w1", "b1"), ("h0",)),
        *middle,
        Node("Gemm", "fc2", ("h1", "w2", "b2"), ("scores",)),
        Node("SoftmaxCrossEntropyLoss", "cross_entropy", ("scores", "labels"), ("loss",)),
        Node("ArgMax", "best", ("scores",), ("answers",), {"axis": 1, "keepdims": 0}),
        Node("Equal", "right", ("answers", "labels"), ("hits",)),
        Node("Cast", "as_number", ("hits",), ("hit_numbers",), {"to": 11}),
        Node("ReduceMean", "share", ("hit_numbers",), ("accuracy",), {"keepdims": 0}),
    ]
    return Graph(
        name="classifier",
        inputs=(
            Input("x", TensorType(dtype, (BATCH, FEATURES))),
            Input("labels", TensorType(DType.INT64, (BATCH,))),
        ),
        parameters=(
            parameter("w1", (FEATURES, HIDDEN), dtype),
            parameter("b1", (HIDDEN,), dtype),
            *parameters,
            parameter("w2", (HIDDEN, CLASSES), dtype),
            parameter("b2", (CLASSES,), dtype),
        ),
        nodes=tuple(nodes),
        outputs=("loss", "accuracy"),
        constants=tuple(constants),
    )


def mlp(dtype: DType = DType.FLOAT64, *, dropout: float | None = None) -> Graph:
    """Two layers with Relu between them, and Dropout after it where a ratio is given."""
    if dropout is None:
        return classifier(dtype, [Node("Relu", "relu", ("h0",), ("h1",))], [], [])
    middle = [
        Node("Relu", "relu", ("h0",), ("active",)),
        Node("Dropout", "drop", ("active", "ratio", "is_training"), ("h1",)),
    ]
    constants = [
        Constant("ratio", np.asarray(dropout, dtype=np.float32)),
        Constant("is_training", np.asarray(True)),
    ]
    return classifier(dtype, middle, [], constants)


def normalized(dtype: DType = DType.FLOAT64) -> Graph:
    """Two layers with BatchNormalization and Relu between them; running statistics `mean` and `var`."""
    middle = [
        Node(
            "BatchNormalization",
            "norm",
            ("h0", "scale", "shift", "mean", "var"),
            ("normal", "new_mean", "new_var"),
            {"training_mode": 1, "momentum": 0.9},
        ),
        Node("Relu", "relu", ("normal",), ("h1",)),
    ]
    parameters = [
        Parameter("scale", TensorType(dtype, (HIDDEN,)), Initializer("ConstantOfShape", {"value": 1.0})),
        Parameter("shift", TensorType(dtype, (HIDDEN,)), Initializer("ConstantOfShape", {"value": 0.0})),
        running("mean", 0.0, dtype),
        running("var", 1.0, dtype),
    ]
    return classifier(dtype, middle, parameters, [])


BAG, VOCABULARY, WIDTH = 5, 40, 4


def bags(
    dtype: DType = DType.FLOAT64,
    *,
    dense: bool = True,
    trained: bool = True,
    vocabulary: int = VOCABULARY,
    row_sparse: bool = True,
    lazy_update: bool = True,
) -> Graph:
    """ids (batch, 5) -> rows of `table` -> their mean -> Gemm -> mean cross-entropy, and the share of right answers.

    Without `dense` the layer behind the table is frozen; with `trained` False the table is.
    """
    draw = Initializer("RandomUniform", {"low": -0.5, "high": 0.5})
    nodes = [
        Node("Gather", "look_up", ("table", "ids"), ("words",)),
        Node("ReduceMean", "bag", ("words",), ("h",), {"axes": (1,), "keepdims": 0}),
        Node("Gemm", "fc", ("h", "w", "b"), ("scores",)),
        Node("SoftmaxCrossEntropyLoss", "cross_entropy", ("scores", "labels"), ("loss",)),
        Node("ArgMax", "best", ("scores",), ("answers",), {"axis": 1, "keepdims": 0}),
        Node("Equal", "right", ("answers", "labels"), ("hits",)),
        Node("Cast", "as_number", ("hits",), ("hit_numbers",), {"to": 11}),
        Node("ReduceMean", "share", ("hit_numbers",), ("accuracy",), {"keepdims": 0}),
    ]
    return Graph(
        name="bags",
        inputs=(
            Input("ids", TensorType(DType.INT64, (BATCH, BAG))),
            Input("labels", TensorType(DType.INT64, (BATCH,))),
        ),
        parameters=(
            Parameter(
                "table",
                TensorType(dtype, (vocabulary, WIDTH)),
                draw,
                trainable=trained,
                row_sparse=row_sparse,
                lazy_update=lazy_update,
            ),
            Parameter("w", TensorType(dtype, (WIDTH, CLASSES)), draw, trainable=dense),
            Parameter("b", TensorType(dtype, (CLASSES,)), draw, trainable=dense),
        ),
        nodes=tuple(nodes),
        outputs=("loss", "accuracy"),
    )
