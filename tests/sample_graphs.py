"""Graphs that tests of several kinds start from, written out in the IR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft_graph.dimensions import Dim
from weft_graph.ir import AttributeValue, Constant, Graph, Initializer, Input, Node, Parameter
from weft_graph.types import DType, TensorType

ZERO = Initializer("ConstantOfShape", {"value": 0.0})
SMALL = Initializer("RandomUniform", {"low": -0.5, "high": 0.5})


def tensor(dtype: DType, *shape: Dim) -> TensorType:
    return TensorType(dtype, shape)


def floats(*shape: Dim) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


def weight(name: str, *shape: int, trainable: bool = True, dtype: DType = DType.FLOAT32) -> Parameter:
    return Parameter(name, TensorType(dtype, shape), SMALL, trainable)


def node(
    op_type: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: AttributeValue
) -> Node:
    """A node that is named after its first output unless it is given a name."""
    return Node(op_type, name or f"n_{outputs[0]}", tuple(inputs), tuple(outputs), attributes)


def ints(name: str, *values: int) -> Constant:
    return Constant(name, np.array(values, dtype=np.int64))


def scalar(name: str, value: float | bool, dtype: str) -> Constant:
    return Constant(name, np.array(value, dtype=dtype))


def accuracy(scores: str, labels: str, output: str) -> tuple[Node, ...]:
    """The share of rows whose largest score is the label's."""
    return (
        node("ArgMax", [scores], ["guess"], axis=1, keepdims=0),
        node("Equal", ["guess", labels], ["hit"]),
        node("Cast", ["hit"], ["hit_float"], to=1),
        node("ReduceMean", ["hit_float"], [output], keepdims=0),
    )


def mlp(dtype: DType = DType.FLOAT32, width: int = 5) -> Graph:
    """Two dense layers on 4 columns, 3 classes, softmax cross entropy and accuracy."""
    return Graph(
        name="mlp",
        inputs=(Input("x", tensor(dtype, "batch", 4)), Input("label", tensor(DType.INT64, "batch"))),
        parameters=(
            weight("w1", 4, width, dtype=dtype),
            weight("b1", width, dtype=dtype),
            weight("w2", width, 3, dtype=dtype),
            weight("b2", 3, dtype=dtype),
        ),
        nodes=(
            node("MatMul", ["x", "w1"], ["xw1"]),
            node("Add", ["xw1", "b1"], ["h1"]),
            node("Tanh", ["h1"], ["a1"]),
            node("MatMul", ["a1", "w2"], ["xw2"]),
            node("Add", ["xw2", "b2"], ["scores"]),
            node("SoftmaxCrossEntropyLoss", ["scores", "label"], ["loss"]),
            *accuracy("scores", "label", "accuracy"),
        ),
        outputs=("loss", "accuracy"),
    )


def normalized_mlp() -> Graph:
    """A dense layer, BatchNormalization in training mode, Dropout at 0.5, a dense layer, softmax cross entropy."""
    return Graph(
        name="normalized",
        inputs=(Input("x", floats("batch", 4)), Input("label", tensor(DType.INT64, "batch"))),
        parameters=(
            weight("w1", 4, 6),
            weight("gamma", 6),
            weight("beta", 6),
            weight("mean", 6, trainable=False),
            weight("var", 6, trainable=False),
            weight("w2", 6, 3),
        ),
        nodes=(
            node("MatMul", ["x", "w1"], ["h"]),
            node("BatchNormalization", ["h", "gamma", "beta", "mean", "var"], ["normal"], training_mode=1),
            node("Relu", ["normal"], ["a"]),
            node("Dropout", ["a", "ratio", "training"], ["kept"]),
            node("MatMul", ["kept", "w2"], ["scores"]),
            node("SoftmaxCrossEntropyLoss", ["scores", "label"], ["loss"]),
            *accuracy("scores", "label", "accuracy"),
        ),
        outputs=("loss", "accuracy"),
        constants=(scalar("ratio", 0.5, "float32"), scalar("training", True, "bool")),
    )


def lenet() -> Graph:
    """LeCun et al. 1998, figure 2, with max pooling and ReLU, on 28 x 28 images."""
    return Graph(
        name="lenet",
        inputs=(Input("image", floats("batch", 1, 28, 28)), Input("label", tensor(DType.INT64, "batch"))),
        parameters=(
            weight("conv1.weight", 6, 1, 5, 5),
            weight("conv1.bias", 6),
            weight("conv2.weight", 16, 6, 5, 5),
            weight("conv2.bias", 16),
            weight("dense1.weight", 120, 400),
            weight("dense1.bias", 120),
            weight("dense2.weight", 10, 120),
            weight("dense2.bias", 10),
        ),
        nodes=(
            node("Conv", ["image", "conv1.weight", "conv1.bias"], ["c1"], pads=(2, 2, 2, 2)),
            node("Relu", ["c1"], ["r1"]),
            node("MaxPool", ["r1"], ["p1"], kernel_shape=(2, 2), strides=(2, 2)),
            node("Conv", ["p1", "conv2.weight", "conv2.bias"], ["c2"]),
            node("Relu", ["c2"], ["r2"]),
            node("MaxPool", ["r2"], ["p2"], kernel_shape=(2, 2), strides=(2, 2)),
            node("Flatten", ["p2"], ["flat"]),
            node("Gemm", ["flat", "dense1.weight", "dense1.bias"], ["d1"], transB=1),
            node("Relu", ["d1"], ["r3"]),
            node("Gemm", ["r3", "dense2.weight", "dense2.bias"], ["scores"], transB=1),
            node("SoftmaxCrossEntropyLoss", ["scores", "label"], ["loss"]),
            *accuracy("scores", "label", "accuracy"),
        ),
        outputs=("loss", "accuracy"),
    )


def line(
    nodes: Sequence[Node],
    parameters: Sequence[Parameter] = (),
    *,
    inputs: Mapping[str, TensorType] | None = None,
    constants: Sequence[Constant] = (),
    outputs: Sequence[str] = ("loss",),
) -> Graph:
    """A graph of the given nodes on one input `x` of 4 columns, unless told otherwise."""
    given = {"x": floats("batch", 4)} if inputs is None else inputs
    return Graph(
        name="line",
        inputs=tuple(Input(name, type_) for name, type_ in given.items()),
        parameters=tuple(parameters),
        nodes=tuple(nodes),
        outputs=tuple(outputs),
        constants=tuple(constants),
    )
