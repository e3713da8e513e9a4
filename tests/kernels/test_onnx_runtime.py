"""Sessions of onnxruntime: what a session of several nodes gives, and what it says where it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from weft_graph.ir import WEFT_DOMAIN, Node, Subgraph
from weft_graph.types import DType, TensorType
from weft_kernels.errors import OutOfRangeError
from weft_kernels.kernel import KernelContext
from weft_kernels.onnx_runtime.lowering import Lowered, check_of, lowered
from weft_kernels.onnx_runtime.session import Session, SessionError
from weft_kernels.run import run_node, run_nodes

Array = np.ndarray[Any, np.dtype[Any]]


def types_of(**shapes: tuple[int, ...]) -> dict[str, TensorType]:
    return {name: TensorType(DType.FLOAT32, shape) for name, shape in shapes.items()}


def session_of(nodes: Sequence[Node], types: dict[str, TensorType], inputs: str, outputs: str) -> Session:
    body = Subgraph(tuple(inputs.split()), (), tuple(nodes), tuple(outputs.split()))
    return Session(body, types, threads=1)


LAYER = (
    Node("Gemm", "product", ("x", "w", "b"), ("h",)),
    Node("Relu", "active", ("h",), ("y",)),
    Node("ReluGrad", "back", ("g", "y"), ("d",), {}, WEFT_DOMAIN),
    Node("SumTo", "summed", ("d", "b"), ("s",), {}, WEFT_DOMAIN),
)
LAYER_TYPES = types_of(x=(5, 4), w=(4, 3), b=(3,), h=(5, 3), y=(5, 3), g=(5, 3), d=(5, 3), s=(3,))


def drawn(*names: str) -> list[Array]:
    draw = np.random.default_rng(1)
    return [draw.standard_normal(LAYER_TYPES[name].static_shape).astype(np.float32) for name in names]


def test_a_session_writes_where_it_is_asked_to_and_gives_the_same_bits_again() -> None:
    session = session_of(LAYER, LAYER_TYPES, "x w b g", "y s")
    arrays = drawn("x", "w", "b", "g")
    placed = np.empty((5, 3), np.float32), np.empty((3,), np.float32)
    made = session(KernelContext("session", placed=placed), arrays, {})
    again = session(KernelContext("session"), [array.copy() for array in arrays], {})
    values = dict(zip("xwbg", arrays, strict=True))
    run_nodes(KernelContext(""), LAYER, values, keep=("y", "s"))
    for array, other, place, name in zip(made, again, placed, "ys", strict=True):
        assert array is place
        np.testing.assert_array_equal(array, other)
        np.testing.assert_allclose(array, values[name], rtol=1e-6, atol=1e-6)


def test_an_input_in_any_order_of_memory_is_taken() -> None:
    session = session_of(LAYER[:2], LAYER_TYPES, "x w b", "y")
    x, w, b = drawn("x", "w", "b")
    (expected,) = session(KernelContext(""), [x, w, b], {})
    (found,) = session(KernelContext(""), [np.asfortranarray(x), np.asfortranarray(w), b], {})
    np.testing.assert_array_equal(found, expected)


def test_a_relus_gradient_keeps_infinities_where_it_passes_and_drops_them_where_it_does_not() -> None:
    session = session_of(LAYER[2:3], types_of(g=(6,), y=(6,), d=(6,)), "g y", "d")
    inf, nan = np.inf, np.nan
    gradient = np.array([inf, inf, -inf, -inf, nan, -2], np.float32)
    output = np.array([0, 1, 0, 1, 1, 0], np.float32)
    (found,) = session(KernelContext(""), [gradient, output], {})
    np.testing.assert_array_equal(found, [0, inf, 0, -inf, nan, 0])


def test_the_gradient_of_windows_of_2_x_2_is_that_of_its_body_where_elements_are_equal_too() -> None:
    types = types_of(g=(2, 3, 2, 4), x=(2, 3, 4, 8), y=(2, 3, 2, 4), d=(2, 3, 4, 8))
    windows = {"kernel_shape": (2, 2), "strides": (2, 2)}
    draw = np.random.default_rng(4)
    x = draw.integers(0, 3, (2, 3, 4, 8)).astype(np.float32)
    y = x.reshape(2, 3, 2, 2, 4, 2).max(axis=(3, 5))
    gradient = draw.standard_normal(y.shape).astype(np.float32)
    node = Node("MaxPoolGrad", "back", ("g", "x", "y"), ("d",), windows, WEFT_DOMAIN)
    (found,) = session_of([node], types, "g x", "d")(KernelContext(""), [gradient, x], {})
    np.testing.assert_array_equal(found, run_node(KernelContext(""), node, [gradient, x, y])[0])
    for other in ({"pads": (1, 1, 1, 1)}, {"strides": (1, 1)}, {"kernel_shape": (3, 3)}):
        changed = Node("MaxPoolGrad", "back", ("g", "x", "y"), ("d",), {**windows, **other}, WEFT_DOMAIN)
        assert not lowered(changed, Lowered(types))


@pytest.mark.parametrize(
    ("size", "kernel", "strides", "pads", "products"),
    [
        pytest.param((2, 2), (3, 3), (1, 1), (1, 1, 1, 1), True, id="every place of the kernel sees some element"),
        pytest.param((1, 1), (3, 3), (1, 1), (1, 1, 1, 1), True, id="one place sees an element"),
        pytest.param((2, 2), (3, 3), (2, 2), (1, 1, 1, 1), True, id="one window"),
        pytest.param((3, 5), (3, 2), (2, 3), (1, 0, 1, 1), True, id="windows apart from each other"),
        pytest.param((6, 7), (3, 3), (1, 1), (1, 0, 1, 2), False, id="many windows"),
        pytest.param((6, 7), (1, 1), (2, 2), (0, 0, 0, 0), False, id="many windows apart from each other"),
        pytest.param((6, 7), (3, 2), (1, 2), (2, 1, 0, 0), False, id="windows with gaps"),
    ],
)
@pytest.mark.parametrize(("batch", "features"), [(4, 5), (4, 8), (16, 5), (16, 8)])
def test_a_convolution_and_its_gradients_are_those_of_their_bodies(
    size: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, ...],
    products: bool,
    batch: int,
    features: int,
) -> None:
    """Few images have their columns cut out and joined, more have them gathered; few features are turned."""
    draw = np.random.default_rng(5)
    x, w = draw.standard_normal((batch, 3, *size)), draw.standard_normal((features, 3, *kernel))
    arrays = {"x": x, "w": w, "b": draw.standard_normal(features)}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    dilations = (2, 2) if pads == (2, 1, 0, 0) else (1, 1)
    attributes = {"strides": strides, "pads": pads, "kernel_shape": kernel, "dilations": dilations}
    nodes = (
        Node("Conv", "forward", ("x", "w", "b"), ("y",), attributes),
        Node("ConvInputGrad", "data", ("g", "x", "w"), ("dx",), attributes, WEFT_DOMAIN),
        Node("ConvWeightGrad", "weights", ("g", "x", "w"), ("dw",), attributes, WEFT_DOMAIN),
    )
    (y,) = run_node(KernelContext(""), nodes[0], [arrays[name] for name in "xwb"])
    arrays["g"] = np.asarray(draw.standard_normal(y.shape), np.float32)
    types = types_of(**{name: array.shape for name, array in arrays.items()}, y=y.shape, dx=x.shape, dw=w.shape)
    into = Lowered(types)
    assert all(lowered(node, into) for node in nodes)
    operators = {node.op_type for node in into.nodes}
    assert bool(operators & {"Conv", "ConvTranspose"}) is not products
    assert ("Gather" in operators, "Slice" in operators) == (batch == 16, batch == 4)
    for node in nodes:
        used = [
            name for name in node.inputs if node.op_type == "Conv" or name != {"dx": "x", "dw": "w"}[node.outputs[0]]
        ]
        session = session_of([node], types, " ".join(used), node.outputs[0])
        (found,) = session(KernelContext(""), [arrays[name] for name in used], {})
        (expected,) = run_node(KernelContext(""), node, [arrays[name] for name in node.inputs])
        atol = 1e-6 * max(10.0, float(np.abs(expected).max()))  # Of sums of up to 672 products.
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)


def test_batch_normalization_in_training_and_its_gradient_are_those_of_their_bodies() -> None:
    draw = np.random.default_rng(6)
    arrays = {name: draw.standard_normal((4, 3, 2, 5)).astype(np.float32) * 2 + 1 for name in "xg"}
    arrays |= {name: draw.random(3).astype(np.float32) + 0.5 for name in ("scale", "bias", "mean", "variance")}
    types = types_of(**{name: array.shape for name, array in arrays.items()}, y=(4, 3, 2, 5), dx=(4, 3, 2, 5))
    types |= types_of(m=(3,), v=(3,), ds=(3,), db=(3,))
    training = {"training_mode": 1, "epsilon": 0.01}
    reads = ("x", "scale", "bias", "mean", "variance")
    forward = Node("BatchNormalization", "norm", reads, ("y", "m", "v"), {**training, "momentum": 0.75})
    reads = ("g", "x", "scale", "mean", "variance")
    back = Node("BatchNormalizationGrad", "back", reads, ("dx", "ds", "db"), training, WEFT_DOMAIN)
    for node, used in ((forward, forward.inputs), (back, back.inputs[:3])):
        session = session_of([node], types, " ".join(used), " ".join(node.outputs))
        found = session(KernelContext(""), [arrays[name] for name in used], {})
        expected = run_node(KernelContext(""), node, [arrays[name] for name in node.inputs])
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
    by_running = Node("BatchNormalization", "norm", forward.inputs, ("y",))
    assert not lowered(by_running, Lowered(types))


def test_a_relus_gradient_passes_whole_where_the_output_is_the_least_positive_number() -> None:
    session = session_of(LAYER[2:3], types_of(g=(3,), y=(3,), d=(3,)), "g y", "d")
    gradient = np.array([np.inf, -np.finfo(np.float32).max, np.inf], np.float32)
    output = np.array([np.finfo(np.float32).smallest_subnormal] * 2 + [0], np.float32)
    (found,) = session(KernelContext(""), [gradient, output], {})
    np.testing.assert_array_equal(found, [*gradient[:2], 0])


def test_an_input_may_be_read_in_several_shapes_and_change_from_call_to_call() -> None:
    nodes = (
        Node("Flatten", "flat", ("x",), ("f",)),
        Node("ReshapeLike", "like", ("f", "l"), ("r",), {}, WEFT_DOMAIN),
        Node("MatMul", "product", ("f", "w"), ("y",)),
        Node("Add", "sum", ("r", "x"), ("z",)),
    )
    types = types_of(x=(2, 3, 1), l=(2, 3, 1), f=(2, 3), r=(2, 3, 1), w=(3, 1), y=(2, 1), z=(2, 3, 1))
    session = session_of(nodes, types, "x w", "y z f")
    w = np.ones((3, 1), np.float32)
    for number in range(3):
        x = np.full((2, 3, 1), number, np.float32)
        y, z, f = session(KernelContext(""), [x, w], {})
        np.testing.assert_array_equal(y, np.full((2, 1), 3 * number))
        np.testing.assert_array_equal(z, 2 * x)
        np.testing.assert_array_equal(f, x.reshape(2, 3))


def test_a_shape_that_another_value_has_is_known_when_the_session_is_made() -> None:
    """As of `x.view(len(x), -1)`, whose length a node reads out of x's shape."""
    nodes = (
        Node("Reshape", "flat", ("x", "size"), ("f",)),
        Node("Unsqueeze", "column", ("f", "axes"), ("u",)),
        Node("Expand", "spread", ("u", "whole"), ("e",)),
        Node("Neg", "negated", ("e",), ("y",)),
    )
    types = types_of(x=(2, 3, 4), f=(2, 12), u=(2, 1, 12), e=(2, 5, 12), y=(2, 5, 12))
    types |= {name: TensorType(DType.INT64, (size,)) for name, size in {"size": 2, "axes": 1, "whole": 3}.items()}
    into = Lowered(types)
    assert all(lowered(node, into) for node in nodes)
    assert {name for node in into.nodes for name in node.inputs if name in types} == {"x", "f", "u", "e"}
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    (y,) = session_of(nodes, types, "x", "y")(KernelContext(""), [x], {})
    np.testing.assert_array_equal(y, np.broadcast_to(-x.reshape(2, 1, 12), (2, 5, 12)))


def test_gelus_gradient_is_that_of_its_body() -> None:
    node = Node("GeluGrad", "back", ("g", "x"), ("d",), {}, WEFT_DOMAIN)
    session = session_of([node], types_of(g=(4001,), x=(4001,), d=(4001,)), "g x", "d")
    x = np.linspace(-20, 20, 4001, dtype=np.float32)
    gradient = np.random.default_rng(2).standard_normal(4001).astype(np.float32)
    (found,) = session(KernelContext(""), [gradient, x], {})
    np.testing.assert_allclose(found, run_node(KernelContext(""), node, [gradient, x])[0], rtol=2e-6, atol=1e-6)
    tanh = Node("GeluGrad", "back", ("g", "x"), ("d",), {"approximate": "tanh"}, WEFT_DOMAIN)
    assert not lowered(tanh, Lowered(types_of(g=(3,), x=(3,), d=(3,))))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_of_classes_is_that_of_its_body_with_both_outputs(reduction: str) -> None:
    node = Node("SoftmaxCrossEntropyLoss", "loss", ("x", "labels"), ("loss", "p"), {"reduction": reduction})
    shapes = types_of(x=(4, 3, 2), p=(4, 3, 2), loss=())
    session = session_of([node], {**shapes, "labels": TensorType(DType.INT64, (4, 2))}, "x labels", "loss p")
    draw = np.random.default_rng(3)
    inputs: list[Array] = [draw.standard_normal((4, 3, 2)).astype(np.float32), draw.integers(0, 3, (4, 2))]
    for found, expected in zip(
        session(KernelContext(""), inputs, {}), run_node(KernelContext(""), node, inputs), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(("number", "raises"), [(-1, "label -1"), (3, "label 3"), (2, None)])
def test_a_label_is_looked_at_before_a_session(number: int, raises: str | None) -> None:
    node = Node("SoftmaxCrossEntropyLoss", "loss", ("x", "labels"), ("loss",))
    check = check_of(node, types_of(x=(2, 3)))
    assert check is not None
    labels = np.array([0, number])
    if raises is None:
        assert check(KernelContext(""), [None, labels], {}) == ()
    else:
        with pytest.raises(OutOfRangeError, match=raises):
            check(KernelContext(""), [None, labels], {})


def test_rows_by_index_are_those_of_the_body_and_count_from_the_end_where_the_operator_does() -> None:
    types = {**types_of(x=(5, 2), y=(3, 2)), "ids": TensorType(DType.INT64, (3,))}
    x, ids = np.arange(10, dtype=np.float32).reshape(5, 2), np.array([4, -5, -1])
    gather = Node("Gather", "rows", ("x", "ids"), ("y",))
    (found,) = session_of([gather], types, "x ids", "y")(KernelContext(""), [x, ids], {})
    np.testing.assert_array_equal(found, x[ids])
    check = check_of(gather, types)
    assert check is not None
    assert check(KernelContext(""), [None, ids], {}) == ()
    embedding = check_of(Node("Embedding", "rows", ("x", "ids"), ("y",), {}, WEFT_DOMAIN), types)
    assert embedding is not None
    with pytest.raises(OutOfRangeError, match="index -5"):
        embedding(KernelContext(""), [None, ids], {})


def test_a_body_of_pointwise_nodes_is_computed_node_by_node() -> None:
    inner = (
        Node("Mul", "double", ("a", "two"), ("m",)),
        Node("Greater", "above", ("m", "a"), ("is",)),
        Node("Where", "choice", ("is", "m", "a"), ("r",)),
    )
    fused = Node("Fused", "fused", ("x", "c"), ("y",), {"body": Subgraph(("a", "two"), (), inner, ("r",))}, WEFT_DOMAIN)
    session = session_of([fused], types_of(x=(2, 3), c=(1,), y=(2, 3)), "x c", "y")
    x = np.array([[1, -1, 2], [-3, 0, 4]], np.float32)
    (found,) = session(KernelContext(""), [x, np.full(1, 2, np.float32)], {})
    np.testing.assert_array_equal(found, np.maximum(x, 2 * x))


@pytest.mark.parametrize(
    ("node", "types"),
    [
        (Node("Relu", "n", ("x",), ("y",)), {name: TensorType(DType.FLOAT64, (2,)) for name in "xy"}),
        (Node("Relu", "n", ("x",), ("y",)), types_of(x=(0, 2), y=(0, 2))),
        (Node("Relu", "n", ("x",), ("y",)), {name: TensorType(DType.FLOAT32, ("?rows",)) for name in "xy"}),
        (Node("Conv", "n", ("x", "w"), ("y",)), types_of(x=(1, 1, 4), w=(1, 1, 2), y=(1, 1, 3))),
        (Node("Dropout", "n", ("x",), ("y",)), types_of(x=(2,), y=(2,))),
    ],
    ids=["double", "empty", "open", "one dimension", "random"],
)
def test_what_a_session_does_not_take_stays_with_its_body(node: Node, types: dict[str, TensorType]) -> None:
    into = Lowered(types)
    assert not lowered(node, into)
    assert not into.nodes
    assert not into.constants


def test_what_onnxruntime_cannot_compute_is_said_when_the_session_is_made() -> None:
    with pytest.raises(SessionError, match="MatMul 'wrong'"):
        session_of([Node("MatMul", "wrong", ("x", "w"), ("y",))], types_of(x=(2, 3), w=(4, 5), y=(2, 5)), "x w", "y")
