"""Layers: what they compute, what their parameters are, and where first values lie."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest

import weft
from weft import nn, ops
from weft_graph.errors import ShapeError
from weft_graph.ir import Initializer, Parameter

RNG = np.random.default_rng(0)


def parameter_of(expression: weft.Expression, name: str) -> Parameter:
    return next(parameter for parameter in expression.graph().parameters if parameter.name == name)


def test_linear_is_x_times_the_transposed_weight_plus_bias() -> None:
    x, w, b = RNG.standard_normal((5, 3)), RNG.standard_normal((2, 3)), RNG.standard_normal(2)
    y = nn.Linear(3, 2, name="fc")(weft.input("x", ("batch", 3), "float64"))
    value = y.eval({"x": x}, parameters={"fc.weight": w, "fc.bias": b})
    np.testing.assert_allclose(value, x @ w.T + b)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_works_on_the_last_of_many_dimensions(bias: bool) -> None:
    x, w = RNG.standard_normal((5, 4, 3)), RNG.standard_normal((2, 3))
    y = nn.Linear(3, 2, name="fc", bias=bias)(weft.input("x", ("batch", 4, 3), "float64"))
    assert y.shape == ("batch", 4, 2)
    value = y.eval({"x": x}, parameters={"fc.weight": w, "fc.bias": np.ones(2)})
    np.testing.assert_allclose(value, x @ w.T + bias)


def test_a_convolution_is_what_scipy_calls_a_correlation() -> None:
    from scipy.signal import correlate2d

    x, w, b = RNG.standard_normal((2, 3, 6, 5)), RNG.standard_normal((4, 3, 3, 3)), RNG.standard_normal(4)
    y = nn.Conv2d(3, 4, 3, padding="same", name="c")(weft.input("x", ("batch", 3, 6, 5), "float64"))
    value = y.eval({"x": x}, parameters={"c.weight": w, "c.bias": b})
    for n in range(2):
        for m in range(4):
            wanted = sum(correlate2d(x[n, c], w[m, c], mode="same") for c in range(3)) + b[m]
            np.testing.assert_allclose(value[n, m], wanted, atol=1e-12)


def test_a_grouped_convolution_has_smaller_filters() -> None:
    y = nn.Conv2d(4, 6, (3, 1), groups=2, name="c")(weft.input("x", ("batch", 4, 8, 8)))
    assert parameter_of(y, "c.weight").type.shape == (6, 2, 3, 1)
    assert y.shape == ("batch", 6, 6, 8)


def test_batch_normalization_has_two_parameters_that_are_trained_and_two_that_follow() -> None:
    x = RNG.standard_normal((6, 3, 2)) * 5 + 1
    y = nn.BatchNorm(3, name="bn")(weft.input("x", ("batch", 3, 2), "float64"))
    assert [(p.name, p.trainable) for p in y.graph().parameters] == [
        ("bn.scale", True), ("bn.bias", True), ("bn.running_mean", False), ("bn.running_var", False),
    ]  # fmt: skip
    mean, variance = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
    np.testing.assert_allclose(y.eval({"x": x}, training=True), (x - mean) / np.sqrt(variance + 1e-5), atol=1e-6)


def test_dropout_keeps_the_expectation_and_a_share_of_elements() -> None:
    x = np.ones((400, 50), np.float32)
    y = nn.Dropout(0.25)(weft.input("x", ("batch", 50))).eval({"x": x}, seed=1, training=True)
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((y == 0).mean() - 0.25) < 0.02


def test_cross_entropy_is_the_mean_of_minus_the_log_probability() -> None:
    scores, labels = RNG.standard_normal((7, 4)).astype(np.float32), RNG.integers(0, 4, 7)
    loss = nn.cross_entropy(weft.input("s", ("batch", 4)), weft.input("y", ("batch",), "int64"))
    assert loss.shape == ()
    log_probability = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    wanted = -log_probability[np.arange(7), labels].mean()
    np.testing.assert_allclose(loss.eval({"s": scores, "y": labels}), wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_accuracy_is_the_share_of_right_answers(dtype: str) -> None:
    scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]], np.float32)
    accuracy = nn.accuracy(weft.input("s", ("batch", 2)), weft.input("y", ("batch",), dtype))
    value = accuracy.eval({"s": scores, "y": np.array([0, 1, 1, 0], dtype)})
    assert value == np.float32(0.75)
    assert value.dtype == np.float32


def test_labels_of_another_shape_are_refused_rather_than_broadcast() -> None:
    scores = weft.input("s", ("batch", 2))
    with pytest.raises(ShapeError, match="labels"):
        nn.accuracy(scores, weft.input("y", ("batch", 1), "int64"))
    with pytest.raises(ShapeError, match="mean_squared_error"):
        nn.mean_squared_error(weft.input("p", ("batch", 1)), weft.input("t", ("batch",)))


def test_mean_squared_error_is_what_it_says() -> None:
    p, t = RNG.standard_normal((5, 2)), RNG.standard_normal((5, 2))
    loss = nn.mean_squared_error(weft.input("p", ("batch", 2), "float64"), weft.input("t", ("batch", 2), "float64"))
    np.testing.assert_allclose(loss.eval({"p": p, "t": t}), ((p - t) ** 2).mean())


def test_activations_and_pools_are_their_operators() -> None:
    x = RNG.standard_normal((2, 1, 4, 4)).astype(np.float32)
    image = weft.input("x", ("batch", 1, 4, 4))
    for layer, function in (
        (nn.ReLU(), ops.relu), (nn.Sigmoid(), ops.sigmoid), (nn.Tanh(), ops.tanh),
        (nn.MaxPool2d(2), ops.max_pool), (nn.AvgPool2d(2), ops.average_pool), (nn.Flatten(), ops.flatten),
    ):  # fmt: skip
        np.testing.assert_array_equal(layer(image).eval({"x": x}), function(image).eval({"x": x}))


def test_a_layer_that_does_not_fit_is_named_with_both_sides() -> None:
    with pytest.raises(ShapeError, match=r"'fc' has in_features=20.*float32\[batch, 21\]"):
        nn.Linear(20, 2, name="fc")(weft.input("x", ("batch", 21)))
    with pytest.raises(ShapeError, match=r"'conv' has in_channels=3.*float32\[batch, 1, 8, 8\]"):
        nn.Conv2d(3, 4, 3)(weft.input("x", ("batch", 1, 8, 8)))
    with pytest.raises(ShapeError, match="batch, channels, height, width"):
        nn.Conv2d(3, 4, 3)(weft.input("x", ("batch", 3)))
    with pytest.raises(ShapeError, match="'batch_norm' has num_features=2"):
        nn.BatchNorm(2)(weft.input("x", ("batch", 3)))


def test_a_shared_layer_is_of_the_dtype_of_its_first_call() -> None:
    layer = nn.Linear(2, 2)
    layer(weft.input("x", ("batch", 2)))
    with pytest.raises(ShapeError, match=r"float32\[2, 2\].*float64\[2, 2\]"):
        layer(weft.input("y", ("batch", 2), "float64"))


def test_sizes_that_make_no_layer_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="out_features"):
        nn.Linear(3, 0)
    with pytest.raises(ValueError, match="groups"):
        nn.Conv2d(3, 4, 3, groups=2)
    with pytest.raises(ValueError, match="'same'"):
        nn.Conv2d(3, 4, 2, padding="same")
    with pytest.raises(ValueError, match="'sane'"):
        nn.Conv2d(3, 4, 3, padding="sane")
    with pytest.raises(ValueError, match="ratio"):
        nn.Dropout(1.0)(weft.input("x", ("batch", 2)))
    with pytest.raises(ValueError, match="name"):
        nn.Linear(3, 2, name="")


@pytest.mark.parametrize(
    ("init", "wanted"),
    [
        (nn.fan_in_uniform, Initializer("RandomUniform", {"low": -math.sqrt(1 / 18), "high": math.sqrt(1 / 18)})),
        (nn.he_uniform, Initializer("RandomUniform", {"low": -math.sqrt(6 / 18), "high": math.sqrt(6 / 18)})),
        (nn.he_normal, Initializer("RandomNormal", {"mean": 0.0, "scale": math.sqrt(2 / 18)})),
        (nn.glorot_uniform, Initializer("RandomUniform", {"low": -math.sqrt(6 / 63), "high": math.sqrt(6 / 63)})),
        (nn.glorot_normal, Initializer("RandomNormal", {"mean": 0.0, "scale": math.sqrt(2 / 63)})),
        (nn.zeros, Initializer("ConstantOfShape", {"value": 0.0})),
        (nn.ones, Initializer("ConstantOfShape", {"value": 1.0})),
        (nn.constant(3), Initializer("ConstantOfShape", {"value": 3.0})),
        (nn.uniform(-1, 2), Initializer("RandomUniform", {"low": -1.0, "high": 2.0})),
        (nn.normal(0.5), Initializer("RandomNormal", {"mean": 0.0, "scale": 0.5})),
    ],
)
def test_first_values_are_numbers_worked_out_of_the_shape(init: nn.initializers.Init, wanted: Initializer) -> None:
    """A weight (5, 2, 3, 3) has fan-in 2 * 9 = 18 and fan-out 5 * 9 = 45."""
    y = nn.Conv2d(2, 5, 3, init=init, name="c")(weft.input("x", ("batch", 2, 8, 8)))
    assert parameter_of(y, "c.weight").initializer == wanted


def test_first_values_have_the_spread_that_he_asks_for() -> None:
    y = nn.Linear(1000, 200, init=nn.he_uniform, name="fc")(weft.input("x", ("batch", 1000)))
    weight = next(r for r in [i for i in y.record.inputs if i is not None] if r.shape == (200, 1000))  # type: ignore[union-attr]  # a Gemm
    assert weight.eval(seed=5).std() == pytest.approx(math.sqrt(2 / 1000), rel=0.01)


def test_a_vector_has_no_fans() -> None:
    with pytest.raises(ShapeError, match="fan-in"):
        nn.he_uniform((3,))


OF_PYTORCH = {
    "BatchNorm": "BatchNorm2d",
    "InstanceNorm": "InstanceNorm2d",
    "MultiHeadAttention": "MultiheadAttention",
    "TransformerLayer": "TransformerEncoderLayer",
}
"""Layers that have another name there."""
OWN_DEFAULTS = {
    ("Embedding", "dtype"),
    ("EmbeddingBag", "dtype"),
    ("RMSNorm", "eps"),
    ("TransformerLayer", "activation"),
    ("TransformerLayer", "dim_feedforward"),
    ("TransformerLayer", "norm_first"),
    ("Upsample", "align_corners"),
}


@pytest.mark.parametrize(
    "name",
    [
        *("AvgPool2d", "BatchNorm", "Conv2d", "ConvTranspose2d", "Dropout", "ELU", "Embedding", "EmbeddingBag", "GELU"),
        *("GroupNorm", "InstanceNorm", "LayerNorm", "LeakyReLU", "Linear", "MaxPool2d", "MultiHeadAttention", "PReLU"),
        *("PixelShuffle", "PixelUnshuffle", "RMSNorm", "TransformerLayer", "Upsample"),
    ],
)
def test_arguments_are_those_of_pytorch_in_its_order_and_with_its_defaults(name: str) -> None:
    torch = pytest.importorskip("torch")
    own = inspect.signature(getattr(nn, name)).parameters
    theirs = inspect.signature(getattr(torch.nn, OF_PYTORCH.get(name, name))).parameters
    by_place = [one.name for one in own.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert by_place == list(theirs)[: len(by_place)]
    for word in own.keys() & theirs.keys():
        assert own[word].default == theirs[word].default or (name, word) in OWN_DEFAULTS, word


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_take_the_words_that_pytorch_s_take(name: str) -> None:
    torch = pytest.importorskip("torch")
    words = {"input_size": 3, "hidden_size": 4, "bias": False, "bidirectional": True}
    getattr(torch.nn, name)(**words)
    assert getattr(nn, name)(**words)(weft.input("x", ("batch", 5, 3))).shape == ("batch", 5, 8)
