"""Nodes of older opsets compute what they did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnx_models import Array, floats, initializer, model, run
from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.reader import read_model

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 10 - 1
B = np.array([1, 2, 3], dtype=np.float32)


def old(op_type: str, opset: int, inputs: str = "x", outputs: str = "y", **attributes: Any) -> tuple[Any, int]:
    return helper.make_node(op_type, inputs.split(","), outputs.split(","), **attributes), opset


def softmax(matrix: Array) -> Array:
    powers = np.exp(matrix - matrix.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


CASES: dict[str, tuple[tuple[Any, int], Array]] = {
    "add_from_an_axis": (old("Add", 6, "x,b", broadcast=1, axis=1), X + B[None, :, None]),
    "mul_from_the_end": (old("Mul", 6, "x,d", broadcast=1), X * np.arange(4, dtype=np.float32)),
    "sub_overwriting": (old("Sub", 1, "x,x", consumed_inputs=[0, 0]), X * 0),
    "prelu_by_channel": (old("PRelu", 6, "x,b"), np.where(X < 0, X * B[None, :, None], X)),
    "clip_attributes": (old("Clip", 6, min=-0.5, max=0.5), X.clip(-0.5, 0.5)),
    "clip_one_bound": (old("Clip", 6, max=0.5), X.clip(None, 0.5)),
    "softmax_as_matrix": (old("Softmax", 11, axis=1), softmax(X.reshape(2, 12)).reshape(X.shape)),
    "softmax_default_axis": (old("Softmax", 9), softmax(X.reshape(2, 12)).reshape(X.shape)),
    "softmax_last_axis": (old("Softmax", 11, axis=2), softmax(X)),
    "log_softmax_as_vector": (old("LogSoftmax", 1, axis=0), np.log(softmax(X.reshape(1, 24))).reshape(X.shape)),
    "reduce_axes": (old("ReduceMean", 13, axes=[0, 2], keepdims=0), X.mean(axis=(0, 2))),
    "reduce_all": (old("ReduceMax", 11, keepdims=0), X.max()),
    "sum_axes": (old("ReduceSum", 11, axes=[-1], keepdims=1), X.sum(axis=-1, keepdims=True)),
    "unsqueeze_axes": (old("Unsqueeze", 11, axes=[0, 4]), X[None, ..., None]),
    "slice_attributes": (old("Slice", 1, starts=[1, 0], ends=[9, -1], axes=[1, 2]), X[:, 1:9, 0:-1]),
    "slice_all_axes": (old("Slice", 9, starts=[1], ends=[2]), X[1:2]),
    "pad_attributes": (
        old("Pad", 2, pads=[0, 0, 1, 0, 0, 2], value=7.0),
        np.pad(X, ((0, 0), (0, 0), (1, 2)), constant_values=7),
    ),
    "pad_paddings": (old("Pad", 1, paddings=[1, 0, 0, 0, 0, 0]), np.pad(X, ((1, 0), (0, 0), (0, 0)))),
    "reshape_attribute": (old("Reshape", 1, shape=[6, -1]), X.reshape(6, 4)),
    "tile_one_axis": (old("Tile", 1, "x,two,one"), np.tile(X, (1, 2, 1))),
    "concat_default_axis": (old("Concat", 1, "x,x"), np.concatenate([X, X], axis=1)),
    "cast_by_name": (old("Cast", 1, to="INT32"), X.astype(np.int32)),
    "dropout_in_inference": (old("Dropout", 7, ratio=0.9), X),
    "selu_rounded": (old("Selu", 1), np.where(X > 0, 1.0507 * X, 1.0507 * 1.6732 * np.expm1(X)).astype(np.float32)),
    "gemm_broadcast": (old("Gemm", 6, "m,m,m", broadcast=1), np.full((3, 3), 4, np.float32)),
}


@pytest.mark.parametrize("name", CASES)
def test_an_older_form_computes_what_it_did(name: str) -> None:
    (node, opset), expected = CASES[name]
    values = [
        initializer("b", B),
        initializer("d", np.arange(4, dtype=np.float32)),
        initializer("m", np.ones((3, 3), np.float32)),
        initializer("one", np.float32(1)),
        initializer("two", np.float32(2)),
    ]
    proto = model([node], [floats("x", "n", 3, 4)], initializers=values, opset=opset)
    (result,) = run(proto, {"x": X})
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


def test_upsample_takes_the_element_below() -> None:
    image = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    expected = image.repeat(2, axis=2).repeat(3, axis=3)
    scales = initializer("s", np.array([1, 1, 2, 3], np.float32))
    forms = [
        (helper.make_node("Upsample", ["x"], ["y"], height_scale=2.0, width_scale=3.0), 1),
        (helper.make_node("Upsample", ["x"], ["y"], scales=[1.0, 1.0, 2.0, 3.0]), 7),
        (helper.make_node("Upsample", ["x", "s"], ["y"]), 9),
        (helper.make_node("Resize", ["x", "s"], ["y"]), 10),
    ]
    for node, opset in forms:
        (result,) = run(model([node], [floats("x", 1, 1, 2, 2)], initializers=[scales], opset=opset), {"x": image})
        np.testing.assert_array_equal(result, expected)


def test_batch_normalization_trains_where_it_gave_statistics() -> None:
    names = ["x", *"gbmv"]
    values = [initializer(name, np.full(3, 1.0, np.float32)) for name in "gbmv"]
    plain = helper.make_node("BatchNormalization", names, ["y"], spatial=1)
    giving = helper.make_node("BatchNormalization", names, ["y", "mean", "var"], momentum=0.5)
    (result,) = run(model([plain], [floats("x", 2, 3, 4)], initializers=values, opset=7), {"x": X})
    np.testing.assert_allclose(result, (X - 1) / np.sqrt(1 + 1e-5) + 1, atol=1e-6)
    read = read_model(model([giving], [floats("x", 2, 3, 4)], ["y", "mean"], values, opset=9))
    assert read.graph.nodes[0].attributes["training_mode"] == 1


def test_group_normalization_by_groups() -> None:
    data = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    values = [initializer("s", np.array([2, 3], np.float32)), initializer("b", np.array([0, 1], np.float32))]
    node = helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)
    (result,) = run(model([node], [floats("x", "n", 4, 3)], initializers=values, opset=18), {"x": data})
    groups = data.reshape(2, 2, 6)
    normal = (groups - groups.mean(-1, keepdims=True)) / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)
    expected = (normal * np.array([2, 3])[None, :, None] + np.array([0, 1])[None, :, None]).reshape(data.shape)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_a_mask_in_the_type_of_the_data() -> None:
    node = helper.make_node("Dropout", ["x"], ["y", "mask"])
    outputs = run(model([node], [floats("x", 2, 3, 4)], ["y", "mask"], opset=7), {"x": X})
    assert outputs[1].dtype == np.float32
    assert outputs[1].all()


@pytest.mark.parametrize("direction", [0, 1])
def test_a_scan_over_a_batch_of_sequences(direction: int) -> None:
    total, seen = floats("total", 2), floats("seen", 2)
    body = helper.make_graph(
        [helper.make_node("Add", ["before", "next"], ["total"]), helper.make_node("Mul", ["total", "w"], ["seen"])],
        "body",
        [floats("before", 2), floats("next", 2)],
        [total, seen],
    )
    node = helper.make_node("Scan", ["", "s", "x"], ["y", "z"], num_scan_inputs=1, body=body, directions=[direction])
    proto = model(
        [node], [floats("s", 2, 2), floats("x", 2, 3, 2)], ["y", "z"], [initializer("w", np.float32(10))], opset=8
    )
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    start = np.ones((2, 2), np.float32)
    final, all_seen = run(proto, {"s": start, "x": x})
    np.testing.assert_allclose(final, start + x.sum(axis=1))
    order = x[:, ::-1] if direction else x
    np.testing.assert_allclose(all_seen, 10 * (start[:, None] + order.cumsum(axis=1)))


REFUSED = {
    "no such operator yet": (
        helper.make_node("LayerNormalization", ["x", "b"], ["y"], name="ln"),
        13,
        "'ln'.*from 17 on",
    ),
    "no such operator any more": (
        helper.make_node("Upsample", ["x", "b"], ["y"], name="up"),
        11,
        "'up'.*no Upsample any",
    ),
    "a mean by element": (
        helper.make_node("BatchNormalization", ["x", *"bbbb"], ["y"], name="bn", spatial=0),
        7,
        "'bn'.*spatial 0",
    ),
    "an unknown type": (helper.make_node("Cast", ["x"], ["y"], name="c", to="COMPLEX7"), 1, "'c'.*no element type"),
    "statistics of the batch": (
        helper.make_node("BatchNormalization", ["x", *"bbbb"], ["y", "m", "v", "sm"], name="bn"),
        7,
        "'bn'.*saved_mean",
    ),
    "an axis without room": (
        helper.make_node("Add", ["x", "b"], ["y"], name="a", broadcast=1, axis=3),
        6,
        "'a'.*axis 3",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_newer_form_can_say_is_refused_by_the_nodes_name(name: str) -> None:
    node, opset, message = REFUSED[name]
    with pytest.raises(OnnxError, match=message):
        read_model(model([node], [floats("x", 2, 3, 4)], initializers=[initializer("b", B)], opset=opset))


@pytest.mark.parametrize("opset", [29, 0, -3])
def test_an_opset_that_is_not_there_is_refused(opset: int) -> None:
    with pytest.raises(OnnxError, match=f"opset {opset}; this reader knows 1 to 28"):
        read_model(model([helper.make_node("Relu", ["x"], ["y"])], opset=opset))


def test_infinities_and_large_numbers_are_expanded() -> None:
    """No attribute of a graph holds them."""
    for dtype, number in ((TensorProto.FLOAT, -np.inf), (TensorProto.INT64, 2**62 + 1)):
        value = helper.make_tensor("v", dtype, [1], [number])
        nodes = [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("ConstantOfShape", ["s"], ["y"], value=value),
        ]
        (result,) = run(model(nodes, [floats("x", "n", 3)]), {"x": np.zeros((2, 3), np.float32)})
        assert result.shape == (2, 3)
        assert (result == number).all()
