"""Quantization against plain float64, at every granularity, and what does not fit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from weft_graph.errors import DTypeError, ShapeError
from weft_graph.infer import infer
from weft_graph.ir import Graph, Input, Node
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.types import DType, TensorType, array_type
from weft_kernels.kernel import KernelContext
from weft_kernels.run import run_node

INTEGERS = ["int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2"]


def _run(op_type: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
    """The node's outputs, whose types are those that were inferred."""
    names = tuple("" if array is None else f"in{place}" for place, array in enumerate(inputs))
    node = Node(op_type, "node", names, tuple(f"out{place}" for place in range(outputs)), attributes)
    given = tuple(Input(n, array_type(a)) for n, a in zip(names, inputs, strict=True) if a is not None)
    types = infer(Graph("g", given, (), (node,), node.outputs, ()))
    made = run_node(KernelContext("node"), node, list(inputs))
    assert [array_type(array) for array in made] == [types[name] for name in node.outputs]
    return made[0] if outputs == 1 else made


def _data(*shape: int) -> Any:
    return np.random.default_rng(5).normal(0, 40, shape).astype(np.float32)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("granularity", ["tensor", "axis", "blocks"])
def test_round_trip_is_within_half_a_scale(dtype: str, granularity: str) -> None:
    """And what is outside the type's range is at its end."""
    data = _data(4, 6, 5)
    scale_shape, attributes, repeated = {
        "tensor": ((), {}, ()),
        "axis": ((6,), {"axis": -2}, (6, 1)),
        "blocks": ((4, 2, 5), {"axis": 1, "block_size": 4}, (4, 2, 5)),
    }[granularity]
    limits = ml_dtypes.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    scale = np.random.default_rng(1).uniform(0.5, 2, scale_shape).astype(np.float32) * np.float32(60 / max(high, 1))
    zero = np.full(scale_shape, (low + high) // 2, np.int32).astype(dtype)
    made = _run("QuantizeLinear", data, scale, zero, **attributes)
    wide_scale, wide_zero = scale.astype(np.float64), zero.astype(np.float64)
    if granularity == "blocks":
        wide_scale, wide_zero = (np.repeat(each, 4, axis=1)[:, :6] for each in (wide_scale, wide_zero))
    else:
        wide_scale, wide_zero = wide_scale.reshape(repeated), wide_zero.reshape(repeated)
    expected = np.clip(np.rint(data / wide_scale.astype(np.float32)) + wide_zero, low, high)
    np.testing.assert_array_equal(made.astype(np.float64), expected)
    back = _run("DequantizeLinear", made, scale, zero, **attributes)
    inside = (expected > low) & (expected < high)
    assert (np.abs(back - data)[inside] <= np.broadcast_to(wide_scale, data.shape)[inside] * 0.5001).all()


@pytest.mark.parametrize("scale_type", ["float16", "bfloat16", "float32"])
def test_the_division_is_made_in_the_scales_type(scale_type: str) -> None:
    data, scale = _data(64), np.array(0.3, scale_type)
    expected = np.clip(np.rint((data.astype(scale_type) / scale).astype(np.float32)), 0, 255)
    np.testing.assert_array_equal(_run("QuantizeLinear", data, scale), expected.astype(np.uint8))
    wide = np.clip(np.rint(data / scale.astype(np.float32)), 0, 255).astype(np.uint8)
    number = NUMBER_OF_DTYPE[DType.FLOAT32]
    np.testing.assert_array_equal(_run("QuantizeLinear", data, scale, precision=number), wide)


def test_what_is_no_number_or_has_no_end() -> None:
    data = np.array([np.nan, np.inf, -np.inf, 1e30], np.float32)
    assert _run("QuantizeLinear", data, np.float32(1.0).reshape(()), np.array(0, np.int8)).tolist() == [
        0,
        127,
        -128,
        127,
    ]


def test_dynamic_range_has_zero_in_it() -> None:
    for data in (_data(7, 3), np.abs(_data(5)), -np.abs(_data(5)), np.zeros(3, np.float32), np.zeros(0, np.float32)):
        quantized, scale, zero = _run("DynamicQuantizeLinear", data, outputs=3)
        back = (quantized.astype(np.float64) - float(zero)) * float(scale)
        assert np.abs(back - data).max(initial=0) <= float(scale) * 0.501
        assert float(scale) > 0


@pytest.mark.parametrize(("left", "right"), [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")])
def test_products_of_bytes_are_exact(left: str, right: str) -> None:
    """Against Python's own integers, with zero points by row and by column."""
    rng = np.random.default_rng(2)

    def drawn(dtype: str, *shape: int) -> Any:
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)

    a, b, a_zero, b_zero = drawn(left, 3, 70), drawn(right, 70, 4), drawn(left, 3), drawn(right, 4)
    expected = (a.astype(object) - a_zero.astype(object)[:, None]) @ (b.astype(object) - b_zero.astype(object))
    assert _run("MatMulInteger", a, b, a_zero, b_zero).tolist() == expected.tolist()
    scale = np.float32(0.02)
    ratio = expected.astype(np.float64) * float(scale) * 0.5 / 90.0
    made = _run(
        "QLinearMatMul",
        *(a, np.full(3, scale), a_zero, b, np.full(4, 0.5, np.float32), b_zero),
        *(np.array(90, np.float32), np.array(3, np.int8)),
    )
    assert np.abs(made - np.clip(np.rint(ratio) + 3, -128, 127)).max() <= (0 if np.all(ratio % 1 != 0.5) else 1)


def test_a_convolution_of_bytes_is_that_of_their_numbers() -> None:
    rng = np.random.default_rng(4)
    data, weights = (
        rng.integers(0, 256, (2, 4, 6, 5)).astype(np.uint8),
        rng.integers(-128, 128, (6, 2, 3, 2)).astype(np.int8),
    )
    zero, weights_zero = np.array(120, np.uint8), rng.integers(-9, 9, 6).astype(np.int8)
    attributes = {"group": 2, "pads": (1, 0, 2, 1), "strides": (2, 1)}
    floats = [data.astype(np.float64) - 120, weights.astype(np.float64) - weights_zero.reshape(-1, 1, 1, 1)]
    expected = _run("Conv", *floats, **attributes)
    np.testing.assert_array_equal(_run("ConvInteger", data, weights, zero, weights_zero, **attributes), expected)
    bias = rng.integers(-5000, 5000, 6).astype(np.int32)
    scales = rng.uniform(0.01, 0.02, 6).astype(np.float32)
    made = _run(
        "QLinearConv",
        *(data, np.float32(0.1).reshape(()), zero, weights, scales, weights_zero),
        *(np.float32(0.7).reshape(()), np.array(7, np.uint8), bias),
        **attributes,
    )
    factor = (np.float64(np.float32(0.1)) * scales / np.float64(np.float32(0.7))).reshape(-1, 1, 1)
    wanted = np.clip(np.rint((expected + bias.reshape(-1, 1, 1)) * factor) + 7, 0, 255)
    assert np.abs(made - wanted).max() <= 1
    assert (made == wanted).mean() > 0.99


FLOAT = TensorType(DType.FLOAT32, (4, 6))


def _infer(op_type: str, types: list[TensorType], attributes: dict[str, Any]) -> None:
    names = tuple(f"in{place}" for place in range(len(types)))
    node = Node(op_type, "bad", names, ("out",), attributes)
    infer(Graph("g", tuple(Input(n, t) for n, t in zip(names, types, strict=True)), (), (node,), ("out",), ()))


@pytest.mark.parametrize(
    ("scale", "attributes", "message"),
    [
        ((5,), {}, "one for each place"),
        ((6,), {"axis": 2}, "axis 2"),
        ((4, 6), {}, "one number"),
        ((4, 2), {"block_size": 4}, None),
        ((4, 3), {"block_size": 4}, "each block of 4"),
        ((4, 2), {"block_size": -4}, "below 0"),
    ],
)
def test_scales_that_do_not_fit_are_refused(
    scale: tuple[int, ...], attributes: dict[str, Any], message: str | None
) -> None:
    types = [FLOAT, TensorType(DType.FLOAT32, scale)]
    if message is None:
        _infer("QuantizeLinear", types, attributes)
        return
    with pytest.raises(ShapeError, match=message):
        _infer("QuantizeLinear", types, attributes)


def test_types_that_contradict_each_other_are_refused() -> None:
    number = TensorType(DType.FLOAT32, ())
    for types, attributes in (
        ([FLOAT, number, TensorType(DType.INT8, ())], {"output_dtype": NUMBER_OF_DTYPE[DType.UINT8]}),
        ([FLOAT, number], {"output_dtype": NUMBER_OF_DTYPE[DType.INT64]}),
        ([FLOAT, number], {"output_dtype": 999}),
        ([FLOAT, number], {"precision": NUMBER_OF_DTYPE[DType.INT8]}),
    ):
        with pytest.raises(DTypeError, match="bad"):
            _infer("QuantizeLinear", types, attributes)
    with pytest.raises(DTypeError, match="output_dtype"):
        _infer("DequantizeLinear", [TensorType(DType.INT8, (3,)), TensorType(DType.FLOAT8E8M0, ())], {})
