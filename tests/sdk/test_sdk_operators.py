"""Activations, norms, arrangements and reductions give what NumPy or their operators give."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, ops
from weft_graph.check import check
from weft_graph.differentiation import differentiate
from weft_graph.errors import GraphRefusedError, ShapeError

RNG = np.random.default_rng(3)
X = RNG.standard_normal((4, 6))
HERE = weft.input("x", ("batch", 6), "float64")


def value(expression: weft.Expression) -> Any:
    return expression.eval({"x": X})


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (ops.abs, np.abs),
        (ops.floor, np.floor),
        (ops.round, np.round),
        (ops.sin, np.sin),
        (ops.leaky_relu, lambda x: np.where(x < 0, 0.01 * x, x)),
        (ops.elu, lambda x: np.where(x < 0, np.expm1(x), x)),
        (ops.softplus, lambda x: np.log1p(np.exp(x))),
        (ops.gelu, lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2),
        (ops.hard_swish, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
        (ops.mish, lambda x: x * np.tanh(np.log1p(np.exp(x)))),
        (lambda x: ops.clip(x, -1, 0.5), lambda x: np.clip(x, -1, 0.5)),
        (lambda x: ops.clip(x, high=0), lambda x: np.minimum(x, 0)),
        (lambda x: ops.max(x, 0, 1), lambda x: np.maximum(x, 1)),
        (lambda x: ops.mean(x, 1), lambda x: (x + 1) / 2),
        (lambda x: ops.mod(x, 0.5), lambda x: np.mod(x, 0.5)),
        (lambda x: ops.logical_not(ops.less(x, 0)), lambda x: x >= 0),
        (lambda x: ops.logical_xor(ops.less(x, 0), ops.greater_or_equal(x, -1)), lambda x: (x < 0) ^ (x >= -1)),
        (lambda x: ops.reduce_max(x, 1), lambda x: x.max(1)),
        (lambda x: ops.reduce_l2(x, 1, keepdims=True), lambda x: np.linalg.norm(x, axis=1, keepdims=True)),
        (ops.reduce_log_sum_exp, lambda x: np.log(np.exp(x).sum())),
        (lambda x: ops.cum_sum(x, 1, reverse=True), lambda x: np.flip(np.cumsum(np.flip(x, 1), 1), 1)),
        (lambda x: ops.argmin(x, 1), lambda x: x.argmin(1)),
        (lambda x: ops.slice(x, 1, 4, axes=1), lambda x: x[:, 1:4]),
        (lambda x: ops.slice(x, -1, -100, 1, -2), lambda x: x[:, ::-2]),
        (lambda x: ops.pad(x, [0, 1, 0, 2], 5), lambda x: np.pad(x, ((0, 0), (1, 2)), constant_values=5)),
        (lambda x: ops.pad(x, [1, 2], axes=1, mode="reflect"), lambda x: np.pad(x, ((0, 0), (1, 2)), "reflect")),
        (lambda x: ops.tile(x, [1, 2]), lambda x: np.tile(x, (1, 2))),
        (lambda x: ops.expand(ops.reduce_sum(x), [2, 2]), lambda x: np.full((2, 2), x.sum())),
        (lambda x: ops.one_hot(ops.argmax(x, 1), 6), lambda x: np.eye(6, dtype=np.float32)[x.argmax(1)]),
        (lambda x: ops.einsum("bi,bj->ij", x, x), lambda x: x.T @ x),
        (ops.lp_normalization, lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)),
    ],
)
def test_a_function_gives_what_numpy_gives(function: Callable[..., Any], expected: Callable[..., Any]) -> None:
    result = value(function(HERE))
    wanted = expected(X)
    assert result.dtype == wanted.dtype
    np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-12)


def test_split_gives_as_many_pieces_as_it_is_asked_for_and_each_has_a_name() -> None:
    pieces = ops.split(HERE, 4, axis=1, name="cut")
    assert [piece.shape for piece in pieces] == [("batch", 2), ("batch", 2), ("batch", 2), ("batch", 0)]
    first, second = ops.split(HERE, [1, 5], axis=1)
    np.testing.assert_array_equal(value(second), X[:, 1:])
    graph = weft.group(*ops.split(HERE, 2, axis=1, name="halves")).graph()
    check(graph)
    assert graph.nodes[0].outputs == ("halves", "halves.outputs1")
    assert first.shape == ("batch", 1)


def test_split_of_what_does_not_fall_apart_so_is_refused() -> None:
    with pytest.raises(ShapeError, match="adds up to 5, and the dimension is 6"):
        ops.split(HERE, [2, 3], axis=1)
    with pytest.raises(ShapeError, match="adds up to 3, and the dimension is batch"):
        ops.split(HERE, [1, 2])
    first, second = ops.split(HERE, 2)  # how long the parts are, each step decides
    assert first.shape[0] != second.shape[0] != "batch"
    with pytest.raises(GraphRefusedError, match="0 are asked for"):
        ops.split(HERE, 0, axis=1)


@pytest.mark.parametrize(
    ("layer", "function"),
    [
        (nn.LeakyReLU(0.2), lambda x: ops.leaky_relu(x, 0.2)),
        (nn.ELU(), ops.elu),
        (nn.SELU(), ops.selu),
        (nn.GELU("tanh"), lambda x: ops.gelu(x, approximate=True)),
        (nn.Softplus(), ops.softplus),
        (nn.HardSwish(), ops.hard_swish),
        (nn.Mish(), ops.mish),
    ],
)
def test_an_activation_is_its_operator(layer: nn.Layer, function: Callable[..., Any]) -> None:
    np.testing.assert_array_equal(value(layer(HERE)), value(function(HERE)))


def test_norms_normalize_what_they_say() -> None:
    image = weft.input("x", ("batch", 4, 3, 2), "float64")
    x = RNG.standard_normal((5, 4, 3, 2)) * 3 + 1
    for layer, axes in (
        (nn.LayerNorm((4, 3, 2), eps=0.0), (1, 2, 3)),
        (nn.LayerNorm(2, bias=False, eps=0.0), (3,)),
        (nn.InstanceNorm(4, eps=0.0), (2, 3)),
        (nn.GroupNorm(1, 4, eps=0.0), (1, 2, 3)),
    ):
        result = layer(image).eval({"x": x})
        np.testing.assert_allclose(result.mean(axes), 0, atol=1e-12)
        np.testing.assert_allclose(result.var(axes), 1, rtol=1e-12)
    groups = nn.GroupNorm(2, 4, eps=0.0)(image).eval({"x": x}).reshape(5, 2, 12)
    np.testing.assert_allclose(groups.var(2), 1, rtol=1e-12)


def test_a_transposed_convolution_turns_a_convolution_s_shape_around() -> None:
    image = weft.input("x", ("batch", 3, 8, 8))
    small = nn.Conv2d(3, 4, 3, stride=2, padding=1)(image)
    large = nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1)(small)
    assert (small.shape, large.shape) == (("batch", 4, 4, 4), ("batch", 3, 8, 8))
    assert nn.GlobalMaxPool2d()(image).shape == nn.GlobalAvgPool2d()(image).shape == ("batch", 3, 1, 1)


def test_a_net_of_these_layers_has_a_gradient_for_each_of_its_parameters() -> None:
    net = nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.PReLU(8), nn.Linear(8, 3), name="net"
    )
    labels = weft.input("labels", ("batch",), "int64")
    loss = ops.negative_log_likelihood(ops.log_softmax(net(HERE)), labels, name="loss")
    graph = loss.graph()
    gradients = differentiate(graph, "loss").gradients
    assert set(gradients) == {parameter.name for parameter in graph.parameters}
    assert "net.1.scale" in gradients
    assert "net.4.slope" in gradients


def test_a_layer_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="3 channels do not make 2 groups"):
        nn.GroupNorm(2, 3)
    with pytest.raises(ValueError, match="at least one dimension"):
        nn.LayerNorm(())
    with pytest.raises(ShapeError, match="'layer_norm' has normalized_shape=5"):
        nn.LayerNorm(5)(HERE)
    with pytest.raises(ShapeError, match=r"'conv_transpose'.*batch, channels, height, width"):
        nn.ConvTranspose2d(3, 4, 3)(HERE)
