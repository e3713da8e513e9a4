"""Operators of random numbers: the same for any number of workers, new in each step, of the right distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft_graph.errors import DTypeError, ShapeError
from weft_graph.infer import infer
from weft_graph.ir import Graph, Input, Node
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.types import DType, TensorType
from weft_kernels.errors import KernelError
from weft_kernels.kernel import KernelContext
from weft_kernels.run import run_node

LIKE = ["Bernoulli", "RandomUniformLike", "RandomNormalLike", "Multinomial"]


def _draw(
    op_type: str, data: Any = None, *, context: KernelContext | None = None, name: str = "node", **attributes: Any
) -> Any:
    node = Node(op_type, name, () if data is None else ("x",), ("y",), attributes)
    return run_node(context or KernelContext(""), node, [] if data is None else [data])[0]


@pytest.mark.parametrize("op_type", LIKE)
def test_draws_do_not_depend_on_how_the_batch_is_cut(op_type: str) -> None:
    data = np.random.default_rng(0).uniform(0, 1, (6, 5))
    whole = _draw(op_type, data, context=KernelContext("", seed=3, step=7))
    for cut in (1, 2, 5):
        first = _draw(op_type, data[:cut], context=KernelContext("", seed=3, step=7, samples=cut))
        rest = KernelContext("", seed=3, step=7, first_sample=cut, samples=6 - cut)
        np.testing.assert_array_equal(np.concatenate([first, _draw(op_type, data[cut:], context=rest)]), whole)


@pytest.mark.parametrize("op_type", ["RandomUniform", "RandomNormal"])
def test_what_keys_the_draws(op_type: str) -> None:
    """The job's seed, or the node's own; the step; the node's name; the turn of a loop around it."""
    shape = {"shape": (4, 3)}
    plain = _draw(op_type, **shape)
    np.testing.assert_array_equal(plain, _draw(op_type, **shape))
    others = [
        _draw(op_type, context=KernelContext("", seed=1), **shape),
        _draw(op_type, context=KernelContext("", step=1), **shape),
        _draw(op_type, context=KernelContext("", iteration="#1"), **shape),
        _draw(op_type, name="other", **shape),
        _draw(op_type, seed=4.0, **shape),
        _draw(op_type, seed=4.5, **shape),
    ]
    every = [plain, *others]
    assert len({array.tobytes() for array in every}) == len(every)
    same = _draw(op_type, seed=4.0, context=KernelContext("", seed=9), **shape)
    np.testing.assert_array_equal(same, others[4])


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64])
def test_uniform_numbers_are_below_their_upper_end(dtype: DType) -> None:
    made = _draw("RandomUniform", shape=(200_000,), dtype=NUMBER_OF_DTYPE[dtype])
    wide = made.astype(np.float64)
    assert made.dtype == dtype.numpy
    assert wide.min() >= 0
    assert wide.max() < 1
    assert abs(wide.mean() - 0.5) < 0.006
    assert abs(wide.var() - 1 / 12) < 0.002
    moved = _draw("RandomUniform", shape=(50_000,), low=-3.0, high=5.0).astype(np.float64)
    assert abs(moved.mean() - 1) < 0.05
    assert -3 <= moved.min() < -2.99 < 4.99 < moved.max() <= 5


def test_normal_numbers_have_their_moments() -> None:
    made = _draw("RandomNormal", shape=(200_000,), mean=2.0, scale=3.0).astype(np.float64)
    normal = (made - 2) / 3
    assert np.abs([normal.mean(), normal.var() - 1, (normal**3).mean(), (normal**4).mean() - 3]).max() < 0.05
    assert abs((np.abs(normal) < 1.959964).mean() - 0.95) < 0.003
    like = _draw("RandomNormalLike", np.zeros((3, 4), np.int32), dtype=NUMBER_OF_DTYPE[DType.FLOAT16])
    assert (like.dtype, like.shape) == (np.dtype("float16"), (3, 4))


def test_a_bernoulli_draw_is_one_as_often_as_it_should() -> None:
    probabilities = np.repeat(np.array([0.0, 0.2, 0.7, 1.0], np.float32)[:, None], 40_000, axis=1)
    made = _draw("Bernoulli", probabilities, dtype=NUMBER_OF_DTYPE[DType.BOOL])
    assert made.dtype == bool
    shares = made.mean(axis=1)
    assert (shares[0], shares[3]) == (0, 1)
    assert np.abs(shares[1:3] - [0.2, 0.7]).max() < 0.01
    with pytest.raises(KernelError, match=r"outside \[0, 1\]"):
        _draw("Bernoulli", np.array([0.5, 1.5], np.float32))
    with pytest.raises(KernelError, match=r"outside \[0, 1\]"):
        _draw("Bernoulli", np.array([np.nan], np.float32))


def test_classes_are_drawn_by_their_weights() -> None:
    """From logarithms of weights, of any height; a class of weight 0 never is."""
    weights = np.array([[1, 0, 3, 4], [2, 2, 2, 2]], np.float64)
    with np.errstate(divide="ignore"):
        data = np.log(weights) + np.array([[500.0], [-500.0]])
    made = _draw("Multinomial", data, sample_size=40_000, dtype=NUMBER_OF_DTYPE[DType.INT64])
    assert (made.dtype, made.shape) == (np.dtype("int64"), (2, 40_000))
    shares = np.stack([np.bincount(row, minlength=4) / row.size for row in made])
    assert shares[0, 1] == 0
    assert np.abs(shares - weights / weights.sum(axis=1, keepdims=True)).max() < 0.01


@pytest.mark.parametrize(
    ("node", "error", "message"),
    [
        (Node("RandomUniform", "bad", (), ("y",), {"shape": (2, -1)}), ShapeError, "below 0"),
        (Node("RandomUniform", "bad", (), ("y",), {"shape": (2,), "low": float("inf")}), ShapeError, "finite"),
        (Node("RandomNormal", "bad", (), ("y",), {"shape": (2,), "scale": -1.0}), ShapeError, "scale -1.0"),
        (Node("RandomNormal", "bad", (), ("y",), {"shape": (2,), "dtype": 7}), DTypeError, "not as int64"),
        (Node("RandomUniformLike", "bad", ("n",), ("y",)), DTypeError, "not as int64"),
        (Node("Multinomial", "bad", ("x",), ("y",), {"sample_size": -1}), ShapeError, "sample_size -1"),
        (Node("Multinomial", "bad", ("v",), ("y",)), ShapeError, "classes"),
        (Node("RandomUniform", "bad", (), ("y",), {"shape": (1 << 40, 1 << 40)}), ShapeError, "elements"),
    ],
)
def test_what_cannot_be_drawn_is_refused(node: Node, error: type[Exception], message: str) -> None:
    inputs = (
        Input("x", TensorType(DType.FLOAT32, (2, 3))),
        Input("v", TensorType(DType.FLOAT32, (2,))),
        Input("n", TensorType(DType.INT64, (2,))),
    )
    with pytest.raises(error, match=message) as caught:
        infer(Graph("g", inputs, (), (node,), ("y",), ()))
    assert "'bad'" in str(caught.value)
