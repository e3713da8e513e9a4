"""Expressions: their types are known at once, and what is wrong raises where it is written."""

from __future__ import annotations

import sys
import traceback

import numpy as np
import pytest

import weft
from weft import ops
from weft_graph.check import check
from weft_graph.errors import DTypeError, GraphRefusedError, ShapeError, UnknownOperatorError
from weft_graph.infer import infer
from weft_graph.ir import Initializer
from weft_graph.json_form import graph_from_json, graph_to_json
from weft_graph.types import DType

ZERO = Initializer("ConstantOfShape", {"value": 0.0})


def test_a_type_is_known_when_the_expression_is_written() -> None:
    x = weft.input("x", (weft.BATCH, 3))
    y = x @ weft.parameter("w", (3, 5), ZERO) + 1.0
    assert y.shape == ("batch", 5)
    assert y.dtype is DType.FLOAT32


def test_a_wrong_shape_raises_at_the_line_that_wrote_it_naming_the_operator() -> None:
    x = weft.input("x", ("batch", 3))
    w = weft.parameter("w", (4, 5), ZERO)
    with pytest.raises(ShapeError, match=r"MatMul.*x is float32\[batch, 3\].*w is float32\[4, 5\]") as caught:
        x @ w
    here = sys._getframe().f_code.co_name
    assert here in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_two_dtypes_are_refused_by_name_of_the_operator() -> None:
    with pytest.raises(DTypeError, match="Add"):
        weft.input("x", (2,)) + weft.input("y", (2,), "float64")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_python_number_takes_the_dtype_beside_it(dtype: str) -> None:
    x = weft.input("x", ("batch",), dtype)
    for expression in (x + 1, 1.5 - x, x**2, 2 / x, -x):
        assert expression.dtype == dtype


def test_a_float_beside_integers_is_refused_and_not_rounded() -> None:
    with pytest.raises(DTypeError, match=r"Mul.*0\.5 is no int64"):
        weft.input("x", ("batch",), "int64") * 0.5


def test_a_number_that_the_dtype_cannot_hold_is_refused() -> None:
    with pytest.raises(DTypeError, match="Add"):
        weft.input("x", ("batch",), "int8") + 1000


def test_an_array_on_the_left_is_not_gone_through_by_numpy() -> None:
    y = np.ones((2, 3), np.float32) * weft.input("x", (2, 3))
    assert isinstance(y, weft.Expression)
    assert y.shape == (2, 3)


def test_a_constant_is_a_copy() -> None:
    array = np.zeros(3, np.float32)
    constant = weft.constant(array)
    array[:] = 7
    np.testing.assert_array_equal(constant.known, np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="read-only"):
        constant.known[0] = 1  # type: ignore[index]  # that it cannot be written is the point


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1.5, "float32"), ([1.0, 2.0], "float32"), (3, "int64"), (True, "bool"), (np.float64(1), "float64")],
)
def test_constants_have_the_field_s_dtypes(value: object, dtype: str) -> None:
    assert weft.constant(value).dtype == dtype


def test_what_no_tensor_can_hold_is_refused() -> None:
    with pytest.raises(DTypeError, match="complex128"):
        weft.constant(np.zeros(2, complex))
    with pytest.raises(DTypeError, match="float31"):
        weft.input("x", (), "float31")


def test_an_expression_has_no_truth_value_and_no_elements() -> None:
    x = weft.input("x", (2,))
    with pytest.raises(TypeError, match="truth value"):
        bool(x)
    with pytest.raises(TypeError, match=r"float32\[2\]"):
        list(x)


def test_a_parameter_is_of_fixed_shape() -> None:
    with pytest.raises(ShapeError, match="'w'"):
        weft.parameter("w", ("batch", 2), ZERO)  # type: ignore[arg-type]  # that it is refused is the point


def test_negative_dimensions_are_refused() -> None:
    with pytest.raises(ShapeError, match="-1"):
        weft.input("x", ("batch", -1))


def test_an_unknown_operator_is_answered_by_the_nearest_one() -> None:
    with pytest.raises(UnknownOperatorError, match="did you mean 'Sigmoid'"):
        ops.apply("Sigmiod", weft.input("x", (2,)))


def test_an_operator_of_the_converter_is_not_for_users() -> None:
    with pytest.raises(UnknownOperatorError):
        ops.apply("ReluGrad", weft.input("x", (2,)), weft.input("y", (2,)))


def test_an_unknown_attribute_is_refused_with_what_there_is() -> None:
    x = weft.input("x", (2, 2))
    with pytest.raises(GraphRefusedError, match=r"transb.*transB"):
        ops.apply("Gemm", x, x, transb=1)


def test_too_many_inputs_and_too_few_are_refused() -> None:
    x = weft.input("x", (2,))
    with pytest.raises(GraphRefusedError, match="Relu"):
        ops.apply("Relu", x, x)
    with pytest.raises(GraphRefusedError, match="Add"):
        ops.apply("Add", x)


def test_several_outputs_come_as_a_tuple() -> None:
    x = weft.input("x", ("batch", 1, 4, 4))
    pooled, indices = ops.apply("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], outputs=2)  # type: ignore[misc]
    assert pooled.shape == indices.shape == ("batch", 1, 2, 2)
    assert indices.dtype is DType.INT64
    alone = ops.apply("MaxPool", x, kernel_shape=[2, 2])
    assert isinstance(alone, weft.Expression)


def test_a_shape_worked_out_of_constants_is_known() -> None:
    shape = ops.concat([weft.constant([2]), weft.constant([3]) * 2], axis=0)
    np.testing.assert_array_equal(shape.known, [2, 6])
    assert ops.reshape(weft.input("x", (12,)), shape).shape == (2, 6)


def test_a_graph_holds_what_its_outputs_need_and_no_more() -> None:
    x, y = weft.input("x", ("batch", 2)), weft.input("y", ("batch", 2))
    hidden = ops.relu(x)
    loss = ops.reduce_mean(hidden - y)
    assert [i.name for i in weft.graph(loss).inputs] == ["x", "y"]
    served = hidden.graph("served")
    assert served.name == "served"
    assert [i.name for i in served.inputs] == ["x"]
    assert [node.op_type for node in served.nodes] == ["Relu"]


def test_what_is_used_twice_is_one_node() -> None:
    shared = ops.exp(weft.input("x", (2,)))
    assert [node.op_type for node in (shared * shared + shared).graph().nodes] == ["Exp", "Mul", "Add"]


def test_inferred_types_are_those_of_the_whole_graph() -> None:
    x = weft.input("x", ("batch", 1, 8, 8))
    y = ops.flatten(ops.max_pool(ops.relu(x), 2))
    graph = y.graph()
    check(graph)
    assert infer(graph)[graph.outputs[0]] == y.type


def test_a_graph_survives_its_json_form() -> None:
    x = weft.input("x", ("batch", 2))
    graph = (x @ weft.parameter("w", (2, 2), ZERO) + weft.constant([1.0, 2.0])).graph("round")
    back = graph_from_json(graph_to_json(graph))
    assert (back.name, back.inputs, back.parameters, back.nodes, back.outputs) == (
        graph.name, graph.inputs, graph.parameters, graph.nodes, graph.outputs,
    )  # fmt: skip
    np.testing.assert_array_equal(back.constants[0].array, graph.constants[0].array)


def test_groups_join_in_order_and_flatten() -> None:
    x = weft.input("x", (2,))
    a, b, c = ops.relu(x), ops.exp(x), ops.neg(x)
    assert weft.group(a, weft.group(b, c)).outputs == (a, b, c)
    assert weft.group(a, b).graph().outputs == ("relu", "exp")


def test_what_is_no_expression_is_no_output() -> None:
    with pytest.raises(TypeError, match="ndarray"):
        weft.graph(np.zeros(2))  # type: ignore[arg-type]  # that it is refused is the point
    with pytest.raises(GraphRefusedError, match="at least one output"):
        weft.graph()


def test_a_chain_of_ten_thousand_nodes_is_collected() -> None:
    """The walk's depth is bounded by memory, not by the interpreter's stack."""
    x = weft.input("x", ())
    y = x
    for _ in range(10_000):
        y = ops.neg(y)
    graph = y.graph()
    assert len(graph.nodes) == 10_000
    assert graph.nodes[-1].name == "neg_10000"


def test_elements_that_differ_are_told_and_what_equality_gives_is_no_operand() -> None:
    """`==` compares identity, so that an expression can be a key: what it gives would be taken for a number."""
    ids = weft.input("ids", (3,), "int64")
    fed = {"ids": np.array([0, 1, 2])}
    assert (ids != 0).eval(fed).tolist() == [False, True, True]
    assert (ids != ids[::-1]).eval(fed).tolist() == [True, False, True]
    assert (np.array([0, 1, 1]) != ids).eval(fed).tolist() == [False, False, True]  # type: ignore[attr-defined]
    masked = weft.ops.cast(ids != 0, "float32") * 2.0
    assert masked.eval(fed).tolist() == [0, 2, 2]
    assert {ids: 1}[ids] == 1
    assert ids in [ids]
    for wrong in (lambda: ids * (ids == 0), lambda: weft.ops.where(ids == 1, ids, 0), lambda: (ids > 0) & (ids == 1)):
        with pytest.raises(DTypeError, match=r"False is no operand; write weft\.ops\.equal\(a, b\) for a == b"):
            wrong()
