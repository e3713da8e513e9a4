"""Type inference of the operators: symbolic dimensions, and errors that show both sides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft_graph.differentiation import differentiate
from weft_graph.errors import DTypeError, GraphRefusedError, NoGradientError, ShapeError
from weft_graph.infer import infer
from weft_graph.ir import Constant, Graph, Initializer, Input, Node, Parameter
from weft_graph.types import DType, Shape, TensorType

ONE = Initializer("ConstantOfShape", {"value": 1.0})


def graph_of(op_type: str, inputs: tuple[Any, ...], attributes: dict[str, Any], outputs: int = 1) -> Graph:
    """A graph of one node. An input is a shape (float32), a TensorType, an array (a constant) or None (left out)."""
    names = tuple("" if given is None else f"in{place}" for place, given in enumerate(inputs))
    constants = [Constant(n, given) for n, given in zip(names, inputs, strict=True) if isinstance(given, np.ndarray)]
    types = {
        name: given if isinstance(given, TensorType) else TensorType(DType.FLOAT32, given)
        for name, given in zip(names, inputs, strict=True)
        if isinstance(given, tuple | TensorType)
    }
    node = Node(op_type, "node", names, tuple(f"out{place}" for place in range(outputs)), attributes)
    return Graph(
        name="one",
        inputs=tuple(Input(name, type_) for name, type_ in types.items()),
        parameters=(),
        nodes=(node,),
        outputs=node.outputs,
        constants=tuple(constants),
    )


def i64(*numbers: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


B = "batch"
LABELS = TensorType(DType.INT64, (B,))


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "expected"),
    [
        ("Add", ((B, 3), (3,)), {}, (B, 3)),
        ("Add", ((B, 1), (B, 4)), {}, (B, 4)),
        ("Mul", ((1, 3), (B, 1)), {}, (B, 3)),
        ("Relu", ((B, 3),), {}, (B, 3)),
        ("MatMul", ((B, 3), (3, 4)), {}, (B, 4)),
        ("MatMul", ((B, 2, 3), (3,)), {}, (B, 2)),
        ("MatMul", ((B, "tokens", 3), (1, 3, "tokens")), {}, (B, "tokens", "tokens")),
        ("Gemm", ((3, B), (3, 4), (4,)), {"transA": 1}, (B, 4)),
        ("Conv", ((B, 3, 8, 8), (5, 3, 3, 3)), {"strides": (2, 2), "pads": (1, 1, 1, 1)}, (B, 5, 4, 4)),
        ("MaxPool", ((B, 3, 7, 8),), {"kernel_shape": (2, 2), "strides": (2, 2), "ceil_mode": 1}, (B, 3, 4, 4)),
        ("AveragePool", ((B, 3, 5),), {"kernel_shape": (2,), "auto_pad": "SAME_UPPER"}, (B, 3, 5)),
        ("GlobalAveragePool", ((B, 3, "high", "wide"),), {}, (B, 3, 1, 1)),
        ("Flatten", ((B, 3, 4),), {}, (B, 12)),
        ("Flatten", ((B, 3, 4),), {"axis": 2}, ("3*batch", 4)),
        ("Flatten", ((B, "tokens", 4),), {"axis": 2}, ("batch*tokens", 4)),
        ("Reshape", ((B, 3, 4), i64(0, -1)), {}, (B, 12)),
        ("Reshape", ((B, 3, 4), i64(-1, 4)), {}, ("3*batch", 4)),
        ("Reshape", (("3*batch", 4), i64(-1, 3, 4)), {}, (B, 3, 4)),
        ("Reshape", ((B, 12), i64(-1, 3, 4)), {}, (B, 3, 4)),
        ("Reshape", ((0, 12), i64(0, -1)), {}, (0, 12)),
        ("Transpose", ((B, 3, 4),), {"perm": (2, 0, 1)}, (4, B, 3)),
        ("Squeeze", ((B, 1, 3), i64(1)), {}, (B, 3)),
        ("Unsqueeze", ((B, 3), i64(-1)), {}, (B, 3, 1)),
        ("Concat", ((B, 3), (B, 4)), {"axis": 1}, (B, 7)),
        ("Concat", ((B, 3), (B, 3)), {"axis": 0}, ("2*batch", 3)),
        ("Concat", ((B, 3), (2, 3), ("tokens", 3)), {"axis": 0}, ("batch+tokens+2", 3)),
        ("Reshape", (("batch+2", 6), i64(-1, 3)), {}, ("2*batch+4", 3)),
        ("Gather", ((5, 3), TensorType(DType.INT32, (B, "tokens"))), {}, (B, "tokens", 3)),
        ("Gather", ((B, 3, 4), i64(0, -1)), {"axis": -2}, (B, 2, 4)),
        ("Gather", ((B, 3, 4), np.array(2)), {"axis": 1}, (B, 4)),
        ("ReduceSum", ((B, 3), i64(0)), {"keepdims": 0}, (3,)),
        ("ReduceMean", ((B, 3),), {"keepdims": 0}, ()),
        ("Softmax", ((B, 3),), {}, (B, 3)),
        ("SoftmaxCrossEntropyLoss", ((B, 3), LABELS), {}, ()),
        ("SoftmaxCrossEntropyLoss", ((B, 3), LABELS), {"reduction": "none"}, (B,)),
        ("Where", (TensorType(DType.BOOL, (B, 1)), (3,), ()), {}, (B, 3)),
        ("Dropout", ((B, 3), None, None), {}, (B, 3)),
    ],
)
def test_symbolic_dimensions_pass_through(
    op_type: str, inputs: tuple[Any, ...], attributes: dict[str, Any], expected: Shape
) -> None:
    types = infer(graph_of(op_type, inputs, attributes))
    assert types["out0"] == TensorType(DType.FLOAT32, expected)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "message"),
    [
        ("Add", ((B, 3), (4,)), {}, r"do not broadcast: float32\[batch, 3\] and float32\[4\]"),
        ("Add", ((B, 3), (5, 3)), {}, r"float32\[batch, 3\] and float32\[5, 3\]"),
        ("MatMul", ((2, 3), (4, 5)), {}, r"inner dimensions differ: 3 of float32\[2, 3\] and 4 of float32\[4, 5\]"),
        ("MatMul", ((), (4, 5)), {}, r"zero-dim"),
        ("MatMul", ((2, 2, 3), (3, 3, 5)), {}, r"stacks .* float32\[2, 2, 3\] and float32\[3, 3, 5\]"),
        ("Gemm", ((2, 3, 1), (3, 4)), {}, r"must be matrices, got float32\[2, 3, 1\]"),
        ("Gemm", ((2, 3), (3, 4), (3, 4)), {}, r"C float32\[3, 4\] does not broadcast to float32\[2, 4\]"),
        ("Conv", ((B, 3, 8, 8), (5, 2, 3, 3)), {}, r"has 3 channels, weights .* take 2"),
        ("Conv", ((B, 4, 8, 8), (5, 2, 3, 3)), {"group": 2}, r"5 features .* 2 groups"),
        ("Conv", ((B, 3, 2, 8), (5, 3, 3, 3)), {}, r"window of 3 does not fit 2 elements .* float32\[batch, 3, 2, 8\]"),
        ("Conv", ((B, 3, 8), (5, 3, 3, 3)), {}, r"must have one rank"),
        ("Conv", ((B, 3, 8, 8), (5, 3, 3, 3), (4,)), {}, r"bias float32\[4\] .* 5 features"),
        ("Conv", ((B, 3, 8, 8), (5, 3, 3, 3)), {"kernel_shape": (2, 2)}, r"kernel_shape \(2, 2\) .* \(3, 3\)"),
        ("MaxPool", ((B, 3, 8, 8),), {}, r"kernel_shape is missing"),
        ("MaxPool", ((B, 3, 8, 8),), {"kernel_shape": (2,)}, r"kernel \(2,\) has 1 dimensions for 2"),
        ("MaxPool", ((B, 3, 8, 8),), {"kernel_shape": (2, 2), "strides": (0, 1)}, r"strides \(0, 1\)"),
        ("MaxPool", ((B, 3, 8),), {"kernel_shape": (2,), "pads": (1,)}, r"pads \(1,\) must be 2 numbers"),
        ("MaxPool", ((B, 3, 8),), {"kernel_shape": (2,), "auto_pad": "SAME"}, r"auto_pad 'SAME' is none of"),
        ("MaxPool", ((B, 3, 8),), {"kernel_shape": (2,), "pads": (0, 2)}, r"pads \(0, 2\) leave a window of \(2,\)"),
        ("BatchNormalization", ((B, 3), (3,), (3,), (3,), (4,)), {}, r"input 4 float32\[4\] .* float32\[batch, 3\]"),
        ("Flatten", ((B, 3),), {"axis": 3}, r"axis 3 is outside \[-2, 2\]"),
        ("Reshape", ((B, 3), i64(5, 3)), {}, r"\['batch', 3\] cannot be reshaped to \[5, 3\]: 3\*batch elements"),
        ("Reshape", ((2, 3), i64(-1, -1)), {}, r"\[-1, -1\]: dimensions are -1 \(once\)"),
        ("Reshape", ((2, 3), i64(-1, 4)), {}, r"\[2, 3\] cannot be reshaped to \[-1, 4\]: 6 elements"),
        ("Reshape", ((2, 3), i64(2, 3, 0)), {}, r"no dimension 2 to copy"),
        ("Reshape", ((2, 3), i64(0, -1)), {"allowzero": 1}, r"0 or -1, not both"),
        ("Reshape", ((2, 3), TensorType(DType.INT64, ("n",))), {}, r"the shape must be a list of as many"),
        ("Transpose", ((B, 3),), {"perm": (0, 0)}, r"perm \(0, 0\) .* float32\[batch, 3\]"),
        ("Squeeze", ((B, 3), i64(1)), {}, r"dimension 1 of float32\[batch, 3\] is 3, not 1"),
        ("Squeeze", ((B, 1),), {}, r"axes must be given"),
        ("Unsqueeze", ((B, 3), i64(0, 0)), {}, r"twice"),
        ("Concat", ((B, 3), (B, 4)), {"axis": 0}, r"differ beside axis 0: float32\[batch, 3\] and float32\[batch, 4\]"),
        ("Gather", ((4, 3), np.array([0, -5])), {}, r"index -5 is outside \[-4, 4\)"),
        ("Gather", ((4, 3), np.array([[3]])), {"axis": 1}, r"index 3 is outside \[-3, 3\)"),
        ("Gather", ((), np.array(0)), {}, r"axis 0 is outside"),
        ("ReduceSum", ((B, 3), i64(2)), {}, r"axis 2 is outside \[-2, 2\); the input is float32\[batch, 3\]"),
        ("ReduceSum", ((B, 3), TensorType(DType.INT64, (3,))), {}, r"3 axes of 2 dimensions"),
        ("Softmax", ((B, 3),), {"axis": 2}, r"axis 2 is outside \[-2, 2\)"),
        (
            "SoftmaxCrossEntropyLoss",
            ((B,), LABELS),
            {},
            r"scores must be \(batch, classes, ...\), got float32\[batch\]",
        ),
        ("SoftmaxCrossEntropyLoss", ((4, 3), LABELS), {}, r"labels int64\[batch\] do not fit scores float32\[4, 3\]"),
        ("SoftmaxCrossEntropyLoss", ((B, 3), LABELS, (4,)), {}, r"weights float32\[4\] .* float32\[batch, 3\]"),
        ("SoftmaxCrossEntropyLoss", ((B, 3), LABELS), {"reduction": "max"}, r"'max' is none of mean, sum, none"),
        ("Dropout", ((B, 3), np.array(1.5, np.float32)), {}, r"ratio 1.5 is outside \[0, 1\)"),
        ("Dropout", ((B, 3), (2,)), {}, r"ratio must be a scalar, got float32\[2\]"),
        ("ArgMax", ((B, 0),), {"axis": 1}, r"dimension 1 of float32\[batch, 0\] is empty"),
    ],
)
def test_shapes_that_do_not_fit_show_both_sides(
    op_type: str, inputs: tuple[Any, ...], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message) as caught:
        infer(graph_of(op_type, inputs, attributes))
    assert caught.value.node == "node"
    assert "'node'" in caught.value.message


HALF = TensorType(DType.FLOAT16, (3,))


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "message"),
    [
        ("Add", ((3,), HALF), {}, r"one element type, got float32\[3\] and float16\[3\]"),
        ("Concat", ((3,), HALF), {"axis": 0}, r"float32\[3\] and float16\[3\]"),
        ("Where", (TensorType(DType.BOOL, (3,)), (3,), HALF), {}, r"float32\[3\] and float16\[3\]"),
        ("Exp", (TensorType(DType.INT64, (3,)),), {}, r"int64"),
        ("Cast", ((3,),), {"to": 8}, r"to is element type 8, which is none of 1 float32"),
    ],
)
def test_element_types_that_do_not_fit_show_both_sides(
    op_type: str, inputs: tuple[Any, ...], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DTypeError, match=message):
        infer(graph_of(op_type, inputs, attributes))


def trainable(op_type: str, inputs: tuple[TensorType, ...], place: int, attributes: dict[str, Any]) -> Graph:
    """The node with input `place` a parameter, summed up to `loss` from its last output."""
    graph = graph_of(op_type, inputs, attributes, outputs=2)
    parameter = Parameter(f"in{place}", inputs[place], ONE)
    return Graph(
        name="train",
        inputs=tuple(i for i in graph.inputs if i.name != parameter.name),
        parameters=(parameter,),
        nodes=(*graph.nodes, Node("ReduceSum", "total", ("out1",), ("loss",), {"keepdims": 0})),
        outputs=("loss",),
    )


def test_what_has_no_gradient_says_why() -> None:
    """Class weights of the loss, and running statistics as an objective."""
    f = TensorType(DType.FLOAT32, (2, 3))
    row = TensorType(DType.FLOAT32, (3,))
    labels = TensorType(DType.INT64, (2,))
    with pytest.raises(NoGradientError, match="class weights have no gradient"):
        differentiate(trainable("SoftmaxCrossEntropyLoss", (f, labels, row), 2, {}), "loss")
    with pytest.raises(NoGradientError, match="running statistics have no gradient"):
        differentiate(trainable("BatchNormalization", (f, row, row, row, row), 0, {"training_mode": 1}), "loss")


def test_comparisons_end_the_gradient() -> None:
    graph = trainable("Equal", (TensorType(DType.FLOAT32, (3,)),) * 2, 0, {})
    one = Node("Equal", "node", ("in0", "in1"), ("out0",))
    cast = Node("Cast", "cast", ("out0",), ("out1",), {"to": 1})
    broken = Graph("train", graph.inputs, graph.parameters, (one, cast, graph.nodes[1]), graph.outputs)
    with pytest.raises(GraphRefusedError, match="'in0'"):
        differentiate(broken, "loss")


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("Conv", ((B, 1, 8), (1, 1, 3)), {"pads": (1 << 38, 1 << 38), "strides": (1 << 38,)}),
        ("Conv", ((B, 1, 8), (1, 1, 3)), {"auto_pad": "SAME_UPPER", "dilations": (1 << 38,)}),
        ("MaxPool", ((B, 1, 8),), {"kernel_shape": (2,), "pads": (1 << 30,) * 2, "dilations": (1 << 31,)}),
    ],
)
def test_a_few_bytes_of_attributes_cannot_ask_for_any_memory(
    op_type: str, inputs: tuple[Any, ...], attributes: dict[str, Any]
) -> None:
    with pytest.raises(ShapeError, match="at most 64 times as many"):
        infer(graph_of(op_type, inputs, attributes))


@pytest.mark.parametrize("attributes", [{"epsilon": -1.0}, {"epsilon": float("inf")}, {"momentum": 5.0}])
def test_batch_normalization_takes_no_numbers_that_only_give_nan(attributes: dict[str, float]) -> None:
    with pytest.raises(ShapeError, match="epsilon"):
        infer(graph_of("BatchNormalization", ((B, 3), (3,), (3,), (3,), (3,)), attributes))
