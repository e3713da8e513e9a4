"""Bodies whose outputs are large write them where the plan wants them, so that nothing is made beside and copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuda_on_host
from weft_graph.ir import Node
from weft_graph.schema import schema_of
from weft_kernels.kernel import KernelContext, host_inputs, kernel_of

Array = np.ndarray[Any, np.dtype[Any]]


def drawn(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


KERNEL = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
NODES = {
    "conv": (Node("Conv", "n", ("x", "w"), ("y",), KERNEL), (drawn(2, 3, 5, 5), drawn(4, 3, 3, 3))),
    "groups": (Node("Conv", "n", ("x", "w"), ("y",), {"group": 2}), (drawn(2, 4, 5, 5), drawn(6, 2, 3, 3))),
    "conv input": (
        Node("ConvInputGrad", "n", ("g", "x", "w"), ("y",), {}, "weft"),
        (drawn(2, 4, 3, 3), drawn(2, 3, 5, 5), drawn(4, 3, 3, 3)),
    ),
    "points input": (
        Node("ConvInputGrad", "n", ("g", "x", "w"), ("y",), {}, "weft"),
        (drawn(2, 4, 5, 5), drawn(2, 3, 5, 5), drawn(4, 3, 1, 1)),
    ),
    "conv transpose": (Node("ConvTranspose", "n", ("x", "w"), ("y",)), (drawn(2, 3, 4, 4), drawn(3, 2, 3, 3))),
    "softmax": (Node("Softmax", "n", ("x",), ("y",), {"axis": 1}), (drawn(4, 5, 6),)),
    "layer norm": (Node("LayerNormalization", "n", ("x", "w"), ("y",)), (drawn(4, 5, 6), drawn(6))),
    "log softmax": (Node("LogSoftmax", "n", ("x",), ("y",), {"axis": 1}), (drawn(4, 5, 6),)),
    "gemm": (Node("Gemm", "n", ("a", "b", "c"), ("y",), {"transB": 1}), (drawn(4, 5), drawn(3, 5), drawn(3))),
    "stack": (Node("MatMul", "n", ("a", "b"), ("y",)), (drawn(4, 3, 5), drawn(5, 2))),
    "left": (Node("MatMulLeftGrad", "n", ("g", "a", "b"), ("y",), {}, "weft"), (drawn(4, 2), drawn(4, 5), drawn(5, 2))),
    "right": (
        Node("MatMulRightGrad", "n", ("g", "a", "b"), ("y",), {}, "weft"),
        (drawn(4, 3, 2), drawn(4, 3, 5), drawn(5, 2)),
    ),
    "sum": (Node("ReduceSum", "n", ("x", "axes"), ("y",), {"keepdims": 0}), (drawn(4, 5, 6), np.array([1]))),
    "mean": (Node("ReduceMean", "n", ("x", "axes"), ("y",), {"keepdims": 0}), (drawn(4, 5, 6), np.array([1]))),
    "largest": (Node("ReduceMax", "n", ("x", "axes"), ("y",), {"keepdims": 0}), (drawn(4, 5, 6), np.array([1]))),
    "dropout": (Node("Dropout", "n", ("x", "r", "t"), ("y", "mask")), (drawn(4, 5), np.float32(0.5), np.array(True))),
    "average pool": (Node("AveragePool", "n", ("x",), ("y",), {"kernel_shape": (2, 2)}), (drawn(2, 3, 4, 4),)),
    "global average": (Node("GlobalAveragePool", "n", ("x",), ("y",)), (drawn(2, 3, 4, 4),)),
    "loss": (Node("SoftmaxCrossEntropyLoss", "n", ("x", "l"), ("y", "p")), (drawn(4, 3), np.array([0, 2, 1, 1]))),
    "losses": (
        Node("SoftmaxCrossEntropyLoss", "n", ("x", "l"), ("y", "p"), {"reduction": "sum"}),
        (drawn(4, 3), np.array([0, 2, 1, 1])),
    ),
    "scores": (
        Node("SoftmaxCrossEntropyLossGrad", "n", ("g", "p", "l"), ("y",), {"reduction": "mean"}, "weft"),
        (np.float32(1), drawn(4, 3), np.array([0, 2, 1, 1])),
    ),
    "concat": (Node("Concat", "n", ("x", "w"), ("y",), {"axis": 1}), (drawn(4, 5, 6), drawn(4, 2, 6))),
}


@pytest.mark.parametrize("channels_lead", [False, True], ids=["rows", "channels lead"])
@pytest.mark.parametrize("name", NODES)
def test_a_large_output_is_written_where_it_is_wanted(name: str, channels_lead: bool) -> None:
    node, inputs = NODES[name]
    run, attributes = kernel_of(node), schema_of(node).attributes_of(node)
    expected = run(KernelContext("n"), inputs, attributes)[0]
    place = np.full(expected.shape, np.nan, np.float32)
    if channels_lead and place.ndim > 1:
        place = place.swapaxes(0, 1).copy().swapaxes(0, 1)
    made = run(KernelContext("n", placed=(place,)), inputs, attributes)[0]
    np.testing.assert_array_equal(made, expected)
    # A convolution's features lead in memory; where the plan has them otherwise, it is given an array of its own.
    assert np.shares_memory(made, place) == (channels_lead or not node.op_type.startswith("Conv"))


SUMS = (
    Node("SumTo", "n", ("x", "like"), ("y",), {}, "weft"),
    (drawn(4, 5, 6), drawn(5, 1)),
)
ON_A_DEVICE = {
    **{name: case for name, case in NODES.items() if not name.startswith(("conv", "groups", "points"))},
    "sum to": SUMS,
    "root mean square": (Node("RMSNormalization", "n", ("x", "s"), ("y",)), (drawn(4, 5, 6), drawn(6))),
    "batch norm": (
        Node("BatchNormalization", "n", ("x", "s", "b", "m", "v"), ("y", "m2", "v2"), {"training_mode": 1}),
        (drawn(4, 3, 5), drawn(3), drawn(3), drawn(3), drawn(3) ** 2),
    ),
    "embedding": (Node("Embedding", "n", ("t", "ids"), ("y",), {}, "weft"), (drawn(7, 5), np.array([[6, 0], [1, 1]]))),
}


@pytest.mark.parametrize("name", ON_A_DEVICE)
def test_a_device_writes_every_output_where_it_is_wanted(name: str) -> None:
    """The loss beside its log-probabilities, a mask beside what it masks."""
    strict_arrays = pytest.importorskip("strict_arrays", reason="weft[cuda-compile] installs CuPy")
    if reason := cuda_on_host.why_not():
        pytest.skip(reason)
    node, inputs = ON_A_DEVICE[name]
    run, attributes = kernel_of(node), schema_of(node).attributes_of(node)
    on_host = host_inputs(node)
    expected = run(KernelContext("n", asked=node.outputs), inputs, attributes)
    places = tuple(strict_arrays.StrictArray(np.zeros(each.shape, each.dtype)) for each in expected)
    given = [each if at in on_host else strict_arrays.to_device(each) for at, each in enumerate(inputs)]
    with strict_arrays.own_kernels() as xp:
        made = run(KernelContext("n", xp=xp, asked=node.outputs, placed=places), given, attributes)
    for one, place, wanted in zip(made, places, expected, strict=True):
        assert np.shares_memory(strict_arrays.to_host(one), strict_arrays.to_host(place))
        np.testing.assert_allclose(strict_arrays.to_host(one), wanted, rtol=1e-5, atol=1e-6)
