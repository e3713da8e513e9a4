"""Schemas and kernels correspond one to one, and a kernel keeps its contract where the tables of cases do not reach."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import numpy as np
import pytest

import weft_graph.operators
import weft_kernels.operators
from weft_graph.ir import Node
from weft_graph.schema import OpSchema, schema_of, schemas
from weft_kernels.kernel import KernelContext, kernel, kernels
from weft_kernels.run import KernelError, run_node

Array = np.ndarray[Any, np.dtype[Any]]


def names_in(package: Any) -> set[str]:
    return {info.name for info in pkgutil.iter_modules(package.__path__)}


def test_every_schema_has_a_kernel_in_a_module_of_the_same_name_and_the_reverse() -> None:
    """Less Session, whose kernel is made with it: a session of onnxruntime."""
    assert names_in(weft_graph.operators) == names_in(weft_kernels.operators)
    assert set(schemas()) - {("weft", "Session")} == set(kernels())
    for name in names_in(weft_graph.operators):
        module = importlib.import_module(f"weft_graph.operators.{name}")
        here = [schema for schema in vars(module).values() if isinstance(schema, OpSchema)]
        assert here, name
        for schema in here:
            if schema.op_type == "Session":
                continue
            body = inspect.unwrap(kernels()[schema.domain, schema.op_type])
            bodies = importlib.import_module(f"weft_kernels.operators.{name}")
            assert body in vars(bodies).values(), schema.op_type


def test_an_operator_with_two_bodies_is_refused() -> None:
    with pytest.raises(ValueError, match="operator 'Relu' of domain '' has two bodies"):
        kernel("Relu")(kernels()["", "Relu"])


def test_a_gradients_body_has_no_gradient_and_is_weft_s() -> None:
    ours = {"SumTo", "ReshapeLike", "UniqueRows", "Embedding", "Copy", "Fused", "Session", "StopGradient"}
    for (domain, op_type), schema in schemas().items():
        assert (domain == "weft") == (op_type.endswith("Grad") or op_type in ours)
        assert domain != "weft" or schema.gradient is None or op_type in {"Embedding", "StopGradient"}


def run(op_type: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> tuple[Array, ...]:
    names = tuple(f"in{place}" for place in range(len(inputs)))
    node = Node(op_type, "node", names, tuple(f"out{place}" for place in range(outputs)), attributes)
    return run_node(KernelContext(""), node, [np.asarray(array) for array in inputs])


def test_defaults_are_filled_in_and_given_attributes_win() -> None:
    node = Node("Gemm", "node", ("a", "b"), ("y",), {"alpha": 3.0})
    schema = schema_of(node)
    assert schema.attributes_of(node) == {"alpha": 3.0, "beta": 1.0, "transA": 0, "transB": 0}
    assert (schema.attribute(node, "alpha"), schema.attribute(node, "beta")) == (3.0, 1.0)


def test_an_attribute_that_is_neither_given_nor_has_a_default_is_none_and_left_out() -> None:
    node = Node("ReduceSum", "node", ("x",), ("y",))
    schema = schema_of(node)
    assert schema.attribute(node, "axes") is None
    assert schema.attributes_of(node) == {"keepdims": 1, "noop_with_empty_axes": 0}


def test_integers_are_divided_towards_zero() -> None:
    dividend, divisor = np.array([7, -7, 7, -7, 6, -6]), np.array([2, 2, -2, -2, 3, 3])
    expected = [int(a / b) for a, b in zip(dividend.tolist(), divisor.tolist(), strict=True)]
    for dtype in (np.int8, np.int32, np.int64):
        (quotient,) = run("Div", dividend.astype(dtype), divisor.astype(dtype))
        assert quotient.tolist() == expected
        assert quotient.dtype == dtype


def test_an_integer_to_a_negative_power_is_cut_towards_zero() -> None:
    assert run("Pow", np.array([1, 2, -1]), np.array(-1))[0].tolist() == [1, 0, -1]


def test_scalars_come_back_as_arrays() -> None:
    for result in (*run("Add", 1.0, 2.0), *run("ReduceSum", np.ones(3), keepdims=0), *run("MatMul", [1.0], [2.0])):
        assert isinstance(result, np.ndarray)
        assert result.shape == ()


def test_infinities_and_nans_are_values_and_not_warnings() -> None:
    """The whole suite turns warnings into errors."""
    assert run("Log", np.array([0.0, -1.0]))[0][0] == -np.inf
    assert np.isnan(run("Div", np.array([0.0]), np.array([0.0]))[0][0])
    assert np.isnan(run("Relu", np.array([np.nan]))[0][0])


def test_softmax_does_not_overflow() -> None:
    (result,) = run("Softmax", np.array([1000.0, 0.0], dtype=np.float32))
    assert result.tolist() == [1.0, 0.0]
    assert run("Sigmoid", np.array([-1000.0, 1000.0]))[0].tolist() == [0.0, 1.0]


def test_max_pool_indices_are_made_only_where_they_are_asked_for() -> None:
    node = Node("MaxPool", "node", ("x",), ("y",), {"kernel_shape": (2, 2)})
    kernel = kernels()["", "MaxPool"]
    data = np.arange(16.0).reshape(1, 1, 4, 4)
    assert len(kernel(KernelContext("node", asked=("y",)), [data], schema_of(node).attributes_of(node))) == 1
    assert len(kernel(KernelContext("node"), [data], schema_of(node).attributes_of(node))) == 2
    assert run("MaxPool", data, outputs=2, kernel_shape=(2, 2), strides=(2, 2))[1].tolist() == [[[[5, 7], [13, 15]]]]


def test_an_empty_batch_leaves_the_running_statistics() -> None:
    mean, variance = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    inputs = (np.zeros((0, 2)), np.ones(2), np.zeros(2), mean, variance)
    y, new_mean, new_variance = run("BatchNormalization", *inputs, outputs=3, training_mode=1)
    assert y.shape == (0, 2)
    np.testing.assert_array_equal(new_mean, mean)
    np.testing.assert_array_equal(new_variance, variance)


def test_a_loss_whose_labels_are_all_ignored_has_gradient_zero() -> None:
    log_prob, labels = np.log(np.full((2, 3), 1 / 3)), np.array([1, 1])
    node = Node(
        "SoftmaxCrossEntropyLossGrad", "node", ("g", "p", "y"), ("x",), {"ignore_index": 1, "reduction": "mean"}, "weft"
    )
    (gradient,) = run_node(KernelContext(""), node, [np.array(1.0), log_prob, labels])
    np.testing.assert_array_equal(gradient, np.zeros((2, 3)))


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_refused_with_the_types_of_the_inputs(label: int) -> None:
    message = rf"node 'node' .*label {label} is outside \[0, 3\).*in0 is float64\[2, 3\], in1 is int64\[2\]"
    with pytest.raises(KernelError, match=message):
        run("SoftmaxCrossEntropyLoss", np.zeros((2, 3)), np.array([0, label]))
