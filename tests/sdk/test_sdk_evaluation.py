"""`eval` computes what NumPy computes, through the installed evaluator; what is fed is checked."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import weft
from weft import nn, ops
from weft.evaluation import evaluate
from weft_graph.errors import DTypeError, GraphRefusedError, ShapeError
from weft_graph.ir import Initializer
from weft_kernels.evaluate import gradients

UNIFORM = Initializer("RandomUniform", {"low": -1.0, "high": 1.0})
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


ALIKE = (
    lambda x: x[:, 0],
    lambda x: x[..., -1],
    lambda x: x[:, 1:3],
    lambda x: x[1:, ::-2],
    lambda x: x[:, -3:-1, None],
    lambda x: x[None, ..., None, 2],
    lambda x: x[1],
    lambda x: x[-1, 2:],
    lambda x: x[0, 3],
    lambda x: x[:, np.array([[3, 0], [-1, 1]])],
    lambda x: x[[0, 2], 1:, None],
    lambda x: x[()],
    lambda x: x < 0.5,
    lambda x: np.full(4, 0.5, np.float32) <= x,
    lambda x: x[:, :2] > x[:, 2:],
    lambda x: (x >= 0) & ~(x > 1) | (x < -1),
    lambda x: np.float32(1) > x,
    abs,
    lambda x: x.mean(),
    lambda x: x.mean(axis=1, keepdims=True),
    lambda x: x.sum(axis=(0, 1)),
    lambda x: x.sum(-1),
    lambda x: x.max(axis=0),
    lambda x: x.min(),
    lambda x: x.prod(1),
    lambda x: x.argmax(axis=1),
    lambda x: x.argmin(axis=0),
    lambda x: x.reshape(-1, 2, 2),
    lambda x: x.reshape((x.shape[0], 2, -1)),
    lambda x: x.flatten(),
    lambda x: x.T,
    lambda x: x[:, None].transpose(2, 0, 1),
    lambda x: x[:, None].transpose((1, 0, -1)),
    lambda x: x[:, None].swapaxes(0, -1),
    lambda x: x[:, None].squeeze(1),
    lambda x: x.astype("int32"),
    lambda x: x * x.ndim,
)
"""Written alike for expressions and arrays."""


@pytest.mark.parametrize(
    ("expression", "plain"),
    [
        (lambda x: x + 1, lambda x: x + 1),
        (lambda x: 2 - x, lambda x: 2 - x),
        (lambda x: x / 2 * x, lambda x: x / 2 * x),
        (lambda x: 1 / (x * x + 1), lambda x: 1 / (x * x + 1)),
        (lambda x: x**2, lambda x: x**2),
        (lambda x: -x, lambda x: -x),
        (lambda x: x @ np.eye(4, 2, dtype=np.float32), lambda x: x @ np.eye(4, 2)),
        (lambda x: np.ones((2, 4), np.float32) @ ops.transpose(x), lambda x: np.ones((2, 4)) @ x.T),
        (lambda x: np.arange(4, dtype=np.float32) - x, lambda x: np.arange(4) - x),
        (ops.relu, lambda x: np.maximum(x, 0)),
        (ops.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
        (ops.tanh, np.tanh),
        (lambda x: ops.log(ops.exp(x)), lambda x: x),
        (lambda x: ops.sqrt(x * x), np.abs),
        (ops.identity, lambda x: x),
        (lambda x: ops.where(ops.greater(x, 0), x, 0.0), lambda x: np.maximum(x, 0)),
        (lambda x: ops.cast(ops.equal(ops.argmax(x, 1), 2), "float32"), lambda x: (x.argmax(1) == 2).astype(float)),
        (ops.reduce_mean, np.mean),
        (lambda x: ops.reduce_mean(x, 1, keepdims=True), lambda x: x.mean(1, keepdims=True)),
        (lambda x: ops.reduce_sum(x, [0, 1]), np.sum),
        (lambda x: ops.reduce_sum(x, 0), lambda x: x.sum(0)),
        (ops.transpose, np.transpose),
        (lambda x: ops.reshape(x, [0, 2, 2]), lambda x: x.reshape(-1, 2, 2)),
        (lambda x: ops.flatten(ops.unsqueeze(x, 1)), lambda x: x),
        (lambda x: ops.squeeze(ops.unsqueeze(x, [0, 3]), [0]), lambda x: x[..., None]),
        (lambda x: ops.concat([x, x * 2], axis=1), lambda x: np.concatenate([x, x * 2], 1)),
        (ops.softmax, lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
        (ops.log_softmax, lambda x: x - np.log(np.exp(x).sum(1, keepdims=True))),
        (lambda x: ops.gemm(x, x, trans_b=True, alpha=0.5), lambda x: 0.5 * x @ x.T),
        (lambda x: ops.pow(ops.neg(ops.sub(x, ops.mul(x, 3))), 2), lambda x: (2 * x) ** 2),
        (lambda x: ops.div(ops.add(x, 1), 4), lambda x: (x + 1) / 4),
        (lambda x: ops.matmul(x, ops.transpose(x)), lambda x: x @ x.T),
        *((each, each) for each in ALIKE),
    ],
)
def test_an_expression_is_worth_what_numpy_says(expression: object, plain: object) -> None:
    y = expression(weft.input("x", ("batch", 4)))  # type: ignore[operator]  # each is a function of one expression
    value = y.eval({"x": X})
    wanted = plain(X.astype(np.float64))  # type: ignore[operator]  # each is a function of one array
    np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
    assert value.dtype == y.dtype.numpy
    assert value.ndim == y.rank


def test_what_numpy_has_no_method_for_is_pytorchs() -> None:
    x = weft.input("x", ("batch", 2, 3, 4))
    images = np.arange(120, dtype=np.float32).reshape(5, 2, 3, 4)
    for expression, wanted in (
        (x.flatten(1), images.reshape(5, 24)),
        (x.flatten(1, 2), images.reshape(5, 6, 4)),
        (x.flatten(0, 1), images.reshape(10, 3, 4)),
        (x.permute(0, 2, 3, 1), images.transpose(0, 2, 3, 1)),
        (x.unsqueeze(1), images[:, None]),
        (x[:, weft.input("which", (2,), "int64")], images[:, [1, 1]]),
    ):
        feeds = {"x": images, "which": np.array([1, 1])}
        value = expression.eval({name: feeds[name] for name in (each.name for each in expression.graph().inputs)})
        np.testing.assert_array_equal(value, wanted)
    assert x.flatten(1).shape == ("batch", 24)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda x: x[:, 4], r"index 4 is out of range for dimension 1 of float32\[batch, 4\]"),
        (lambda x: x[0, 0, 0], r"3 indices are too many for float32\[batch, 4\]"),
        (lambda x: x[x > 0], "an index of bool is no choice of elements; ops"),
        (lambda x: x["a"], "'a' is no index"),
        (lambda x: x[True], "True is no index"),
        (lambda x: x[..., ...], "one `...` at most"),
        (lambda x: x[[0], [1]], "integers for one dimension only"),
        (lambda x: x[::0], "the step of a slice is not 0"),
        (lambda x: x.transpose(1), "transpose has 1 axes, and .* swapaxes exchanges two"),
        (lambda x: x.swapaxes(0, 2), "there is no dimension 2"),
        (lambda x: x[:, None].reshape(x.shape[0], x.shape[0], -1), "more than one dimension that is not known"),
        (lambda x: 0 < x < 1, "has no truth value"),
    ],
)
def test_a_wrong_index_or_shape_raises_where_it_is_written(
    wrong: Callable[[weft.Expression], object], said: str
) -> None:
    with pytest.raises((ShapeError, TypeError, ValueError), match=said):
        wrong(weft.input("x", ("batch", 4)))


def test_an_index_has_the_gradient_of_what_it_chooses() -> None:
    w = weft.parameter("w", (3, 4), UNIFORM)
    loss = (w[1, ::-2] * 2.0).sum() + w[:, [0, 0]].sum() + w[..., 3].mean()
    graph = loss.graph()
    found = gradients(graph, graph.outputs[0], {}, parameters={"w": X})[1]["w"]
    wanted = np.zeros((3, 4))
    wanted[1, [3, 1]] += 2
    wanted[:, 0] += 2
    wanted[:, 3] += 1 / 3
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_windows_see_what_numpy_sees() -> None:
    images = np.random.default_rng(1).standard_normal((2, 1, 4, 4)).astype(np.float32)
    x = weft.input("x", ("batch", 1, 4, 4))
    windows = images.reshape(2, 1, 2, 2, 2, 2)
    np.testing.assert_array_equal(ops.max_pool(x, 2).eval({x: images}), windows.max(axis=(3, 5)))
    np.testing.assert_allclose(ops.average_pool(x, 2).eval({x: images}), windows.mean(axis=(3, 5)), rtol=1e-5)
    np.testing.assert_allclose(
        ops.global_average_pool(x).eval({x: images}), images.mean((2, 3), keepdims=True), rtol=1e-5, atol=1e-7
    )


def test_pads_and_strides_mean_what_they_say() -> None:
    x = weft.input("x", ("batch", 1, 5, 6))
    w = weft.constant(np.ones((2, 1, 3, 3), np.float32))
    assert ops.conv(x, w, pads=1).shape == ("batch", 2, 5, 6)
    assert ops.conv(x, w, pads=(0, 1)).shape == ("batch", 2, 3, 6)
    assert ops.conv(x, w, pads=(1, 0, 0, 0)).shape == ("batch", 2, 4, 4)
    assert ops.conv(x, w, strides=(2, 1)).shape == ("batch", 2, 2, 4)
    with pytest.raises(weft.ShapeError, match="pads"):
        ops.conv(x, w, pads=(1, 2, 3))


def test_a_group_is_computed_in_one_go_with_outputs_in_order() -> None:
    x = weft.input("x", ("batch", 4))
    total, doubled, again = weft.group(ops.reduce_sum(x), x * 2, ops.reduce_sum(x)).eval({"x": X})
    np.testing.assert_allclose(total, X.sum(), rtol=1e-5)
    np.testing.assert_array_equal(doubled, X * 2)
    assert again == total


def test_one_output_asked_for_twice_comes_twice() -> None:
    y = weft.input("x", ("batch", 4)) * 2
    first, second = weft.group(y, y).eval({"x": X})
    np.testing.assert_array_equal(first, second)


def test_first_values_depend_on_the_seed_alone() -> None:
    w = weft.parameter("w", (50,), UNIFORM)
    np.testing.assert_array_equal(w.eval(seed=3), w.eval(seed=3))
    assert not np.array_equal(w.eval(seed=3), w.eval(seed=4))
    assert np.abs(w.eval()).max() <= 1


def test_given_parameters_are_used_and_those_of_a_larger_graph_are_ignored() -> None:
    y = weft.input("x", ("batch", 4)) @ weft.parameter("w", (4, 1), UNIFORM)
    value = y.eval({"x": X}, parameters={"w": np.ones((4, 1)), "elsewhere": np.ones(7)})
    np.testing.assert_allclose(value[:, 0], X.sum(1), rtol=1e-5)


def test_a_parameter_that_is_not_given_is_named_and_not_made_up() -> None:
    y = nn.Linear(4, 2)(weft.input("x", ("batch", 4)))
    with pytest.raises(GraphRefusedError, match=r"'linear\.bias'; given are 'linear\.weight'"):
        y.eval({"x": X}, parameters={"linear.weight": np.zeros((2, 4))})


def test_feeds_may_lose_precision_but_not_their_kind() -> None:
    y = weft.input("x", ("batch",)) * 2
    np.testing.assert_array_equal(y.eval({"x": [1.5, 2.5]}), np.array([3, 5], np.float32))
    with pytest.raises(DTypeError, match=r"'x' is complex128.*float32\[batch\]"):
        y.eval({"x": np.zeros(2, complex)})
    labels = weft.input("labels", ("batch",), "int64") + 1
    with pytest.raises(DTypeError, match="'labels'"):
        labels.eval({"labels": [0.5]})


def test_feeds_that_lack_exceed_or_do_not_fit_are_named() -> None:
    x, y = weft.input("x", ("batch", 4)), weft.input("y", ("batch", 4))
    with pytest.raises(GraphRefusedError, match="nothing is fed to 'y'"):
        (x + y).eval({"x": X})
    with pytest.raises(GraphRefusedError, match=r"'z' is no input.*'x', 'y'"):
        (x + y).eval({"x": X, "y": X, "z": X})
    with pytest.raises(ValueError, match=r"'x'.*float32\[batch, 4\]"):
        (x * 2).eval({"x": X[:, :3]})
    with pytest.raises(ValueError, match="batch"):
        (x + y).eval({"x": X, "y": X[:2]})
    with pytest.raises(GraphRefusedError, match="is no input of this graph"):
        (x * 2).eval({y: X})


def test_without_an_evaluator_the_pip_command_is_told() -> None:
    y = weft.input("x", ("batch", 4)) * 2
    with pytest.raises(weft.EvaluatorError, match=r"pip install 'weft\[cluster\]'"):
        evaluate((y,), {"x": X}, found=())
    broken = EntryPoint("numpy", "no_such_module_of_weft:evaluate", "weft.evaluators")
    with pytest.raises(weft.EvaluatorError, match=r"no_such_module_of_weft.*pip install"):
        evaluate((y,), {"x": X}, found=(broken,))


def test_numpy_is_preferred_among_several() -> None:
    y = weft.input("x", ("batch", 4)) * 2
    other = EntryPoint("aaa", "no_such_module_of_weft:evaluate", "weft.evaluators")
    numpy = EntryPoint("numpy", "weft_kernels.evaluate:evaluate", "weft.evaluators")
    np.testing.assert_array_equal(evaluate((y,), {"x": X}, found=(other, numpy))[0], X * 2)


def test_eval_is_inference_unless_training_is_asked_for() -> None:
    """BatchNorm reads running statistics, Dropout is the identity; in training the batch's, with elements dropped."""
    x = weft.input("x", ("batch", 4))
    y = nn.Dropout(0.5)(nn.BatchNorm(4, eps=0.0, name="norm")(x))
    values = {
        "norm.scale": np.full(4, 2.0), "norm.bias": np.full(4, 1.0),
        "norm.running_mean": np.full(4, 0.5), "norm.running_var": np.full(4, 4.0),
    }  # fmt: skip
    np.testing.assert_allclose(y.eval({"x": X}, parameters=values), (X - 0.5) / 2 * 2 + 1, rtol=1e-5, atol=1e-6)
    trained = y.eval({"x": X}, parameters=values, training=True)
    by_batch = ((X - X.mean(0)) / X.std(0) * 2 + 1) * 2
    dropped = trained == 0
    assert 0 < dropped.sum() < dropped.size
    np.testing.assert_allclose(trained[~dropped], by_batch[~dropped], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(weft.group(y).eval({"x": X}, parameters=values, training=True)[0], trained)


def test_what_is_no_mapping_is_refused_with_what_to_write() -> None:
    y = weft.input("x", ("batch", 4)) @ weft.parameter("w", (4, 1), UNIFORM)
    with pytest.raises(weft.ArgumentError, match=r'such as \{"x": ...\}, not ndarray of shape \(3, 4\)'):
        y.eval(X)  # type: ignore[arg-type]  # the mistake is the point
    with pytest.raises(weft.ArgumentError, match=r"parameters=weft.load\('w.safetensors'\)"):
        y.eval({"x": X}, parameters="w.safetensors")  # type: ignore[arg-type]  # the mistake is the point
    with pytest.raises(weft.ArgumentError, match="not list"):
        y.eval({"x": X}, parameters=[X])  # type: ignore[arg-type]  # the mistake is the point
    with pytest.raises(weft.FeedError, match=r"'w'.*\[4, 1\]"):
        y.eval({"x": X}, parameters={"w": np.zeros((4, 2))})


def test_saved_parameters_are_loaded_by_name(tmp_path: Path) -> None:
    y = weft.input("x", ("batch", 4)) @ weft.parameter("w", (4, 1), UNIFORM)
    save_file({"w": np.ones((4, 1), np.float32)}, tmp_path / "w.safetensors")
    value = y.eval({"x": X}, parameters=weft.load(tmp_path / "w.safetensors"))
    np.testing.assert_allclose(value[:, 0], X.sum(1), rtol=1e-5)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        weft.load(tmp_path / "nowhere.safetensors")
    (tmp_path / "text").write_text("not this")
    with pytest.raises(weft.ArgumentError, match="text is no safetensors file"):
        weft.load(tmp_path / "text")
