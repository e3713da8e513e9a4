"""Attention in blocks: the same numbers however it is cut, without ever holding the scores of all tokens."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import weft_kernels.attention as cutting
from weft_graph.errors import DTypeError, ShapeError
from weft_graph.infer import Inference
from weft_graph.ir import AttributeValue, Node
from weft_graph.types import DType, TensorType
from weft_kernels.attention import blocks
from weft_kernels.kernel import KernelContext
from weft_kernels.run import KernelError, run_node

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(11)


def attention(*inputs: Array | None, grad: bool = False, outputs: int = 1, **attributes: AttributeValue) -> list[Array]:
    names = tuple("" if array is None else f"in{place}" for place, array in enumerate(inputs))
    out = tuple(f"out{place}" for place in range(outputs))
    op_type, domain = ("AttentionGrad", "weft") if grad else ("Attention", "")
    return list(run_node(KernelContext(""), Node(op_type, "node", names, out, attributes, domain), inputs))


def drawn(*shape: int, dtype: str = "float64") -> Array:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.fixture(params=[1, 7, 64, 1000])
def scores_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(cutting, "HOST_SCORES", request.param)
    monkeypatch.setattr(cutting, "BANDED_QUERIES", 3)
    return int(request.param)


CASES: Mapping[str, tuple[tuple[Array | None, ...], dict[str, Any]]] = {
    "plain": ((drawn(3, 4, 6, 2), drawn(3, 2, 5, 2), drawn(3, 2, 5, 3)), {}),
    "causal": ((drawn(2, 2, 7, 2), drawn(2, 2, 7, 2), drawn(2, 2, 7, 2)), {"is_causal": 1}),
    "window": (
        (drawn(2, 2, 7, 2), drawn(2, 1, 9, 2), drawn(2, 1, 9, 2), drawn(2, 1, 7, 8)),
        {"left_window_size": 1, "right_window_size": 1, "softcap": 2.0},
    ),
    "counts": (
        (drawn(3, 2, 4, 2), drawn(3, 2, 8, 2), drawn(3, 2, 8, 2), None, None, None, np.array([8, 0, 3])),
        {"is_causal": 1, "left_window_size": 2},
    ),
    "cache": (
        (drawn(2, 2, 3, 2), drawn(2, 2, 3, 2), drawn(2, 2, 3, 2), RNG.random((3, 8)) < 0.7, drawn(2, 2, 5, 2),
         drawn(2, 2, 5, 2)),
        {"is_causal": 1},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole() -> Mapping[str, tuple[list[Array], list[Array]]]:
    """Results of one block."""
    return {name: _both(inputs, attributes) for name, (inputs, attributes) in CASES.items()}


def _both(inputs: tuple[Array | None, ...], attributes: dict[str, Any]) -> tuple[list[Array], list[Array]]:
    forward = attention(*inputs, **attributes)
    padded = (*inputs, *(None,) * (7 - len(inputs)))
    flowing = np.cos(np.arange(forward[0].size)).reshape(forward[0].shape)
    outputs = 6 if padded[3] is not None else 5
    return forward, attention(*padded, flowing, grad=True, outputs=outputs, **attributes)


@pytest.mark.parametrize("name", CASES)
def test_any_cut_gives_the_same(
    name: str, scores_at_once: int, whole: Mapping[str, tuple[list[Array], list[Array]]]
) -> None:
    for given, expected in zip(_both(*CASES[name]), whole[name], strict=True):
        for array, wanted in zip(given, expected, strict=True):
            np.testing.assert_allclose(array, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "shape", [(3, 2, 2, 5, 4), (1, 1, 1, 9, 100), (4, 3, 1, 1, 1), (2, 2, 3, 0, 4), (0, 1, 1, 2, 3)]
)
@pytest.mark.parametrize("banded", [False, True])
def test_blocks_cover_every_score_once(shape: tuple[int, ...], banded: bool, scores_at_once: int) -> None:
    seen = np.zeros(shape, dtype=int)
    _, _, group, _, keys = shape
    for block in blocks(np, shape, banded=banded):
        part = seen[block.batches, block.heads, :, block.queries, block.keys]
        assert part.size <= max(scores_at_once, group * keys)
        part += 1
    assert (seen == 1).all()


def peak_of(grad: bool, tokens: int) -> int:
    q, k, v = (drawn(1, 1, tokens, 8, dtype="float32") for _ in range(3))
    inputs = (q, k, v, None, None, None, None, drawn(*q.shape, dtype="float32")) if grad else (q, k, v)
    tracemalloc.start()
    attention(*inputs, grad=grad, outputs=3 if grad else 1, is_causal=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("grad", [False, True])
def test_scores_of_all_tokens_never_exist(grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 tokens have 1 MiB of scores; blocks of 64 KiB, with what is made of one, stay far below."""
    monkeypatch.setattr(cutting, "HOST_SCORES", 1 << 14)
    assert peak_of(grad, 512) < (1 << 20)
    # Of twice as many there are four times as many scores, 3 MiB more.
    assert peak_of(grad, 1024) - peak_of(grad, 512) < (1 << 19)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_round_once(dtype: str) -> None:
    q, k, v = (drawn(2, 2, 40, 8).astype(TensorType(DType(dtype), ()).dtype.numpy) for _ in range(3))
    (given,) = attention(q, k, v)
    (exact,) = attention(*(array.astype(np.float64) for array in (q, k, v)))
    assert given.dtype == q.dtype
    step = 2.0**-11 if dtype == "float16" else 2.0**-8
    np.testing.assert_allclose(given.astype(np.float64), exact, rtol=step * 1.02, atol=1e-6)


def test_an_endless_score_of_a_hidden_key_is_hidden() -> None:
    q, k, v = drawn(1, 1, 2, 2), drawn(1, 1, 3, 2), drawn(1, 1, 3, 2)
    poisoned = k.copy()
    poisoned[0, 0, 2] = [np.inf, -np.inf]
    mask = np.array([[0.5, 0.0, -np.inf], [-np.inf] * 3])
    (given,) = attention(q, poisoned, v, mask)
    (wanted,) = attention(q, k, v, mask)
    np.testing.assert_array_equal(given, wanted)
    assert not given[0, 0, 1].any()


def types_of(*inputs: TensorType | None, **attributes: AttributeValue) -> tuple[TensorType, ...]:
    names = tuple("" if type_ is None else f"in{place}" for place, type_ in enumerate(inputs))
    inference = Inference({name: type_ for name, type_ in zip(names, inputs, strict=True) if type_ is not None})
    return inference.add(Node("Attention", "node", names, ("y",), attributes))


def of(*shape: int | str, dtype: DType = DType.FLOAT32) -> TensorType:
    return TensorType(dtype, shape)


def test_types_keep_the_names_of_dimensions() -> None:
    q, past = of("batch", "new", 12), of("batch", 2, "old", 3)
    part = of("batch", "new", 6)
    y, key, value, scores = types_of(q, part, part, None, past, past, q_num_heads=4, kv_num_heads=2)
    assert y == of("batch", "new", 12)
    assert key == value == of("batch", 2, "new+old", 3)
    assert scores == of("batch", 4, "new", "new+old")


LONG = of(1, 2, 3, 4)


def refusals() -> Iterator[tuple[str, tuple[TensorType | None, ...], dict[str, Any]]]:
    yield "3 or all of 4", (LONG, of(1, 3, 4), LONG), {}
    yield "need q_num_heads", (of(1, 3, 4),) * 3, {"q_num_heads": 2}
    yield "no multiple", (of(1, 3, 3, 4), LONG, LONG), {}
    yield "does not fall into 3 heads", (of(1, 3, 4),) * 3, {"q_num_heads": 3, "kv_num_heads": 3}
    yield "different counts of heads", (LONG, LONG, of(1, 1, 3, 4)), {}
    yield "do not fit each other", (LONG, of(1, 2, 3, 5), LONG), {}
    yield "have no elements", (of(1, 2, 3, 0), of(1, 2, 3, 0), LONG), {}
    yield "attn_mask", (LONG, LONG, LONG, of(3, 2, 3)), {}
    yield "attn_mask", (LONG, LONG, LONG, of(3, 4)), {}
    yield "attn_mask", (LONG, LONG, LONG, of()), {}
    yield "together", (LONG, LONG, LONG, None, LONG), {}
    yield "past_value", (LONG, LONG, LONG, None, LONG, of(1, 2, 9, 4)), {}
    yield "nonpad_kv_seqlen", (LONG, LONG, LONG, None, None, None, of(2, dtype=DType.INT64)), {}
    yield "excludes", (LONG, LONG, LONG, None, LONG, LONG, of(1, dtype=DType.INT64)), {}
    yield "scale", (LONG, LONG, LONG), {"scale": float("nan")}
    yield "softcap", (LONG, LONG, LONG), {"softcap": -1.0}
    yield "none of 0 to 3", (LONG, LONG, LONG), {"qk_matmul_output_mode": 4}
    yield "left_window_size", (LONG, LONG, LONG), {"left_window_size": -2}
    yield "softmax_precision", (LONG, LONG, LONG), {"softmax_precision": 7}
    yield "5 heads are asked for", (LONG, LONG, LONG), {"q_num_heads": 5}


@pytest.mark.parametrize(("message", "inputs", "attributes"), list(refusals()))
def test_what_does_not_fit_is_refused(
    message: str, inputs: tuple[TensorType | None, ...], attributes: dict[str, Any]
) -> None:
    with pytest.raises((ShapeError, DTypeError), match=message):
        types_of(*inputs, **attributes)


def test_counts_below_zero_and_masks_that_are_too_long_are_refused_in_a_step() -> None:
    q = drawn(1, 1, 2, 2)
    with pytest.raises(KernelError, match="nonpad_kv_seqlen holds -1"):
        attention(q, q, q, None, None, None, np.array([-1]))
    with pytest.raises(KernelError, match="for 3 keys, and there are 2"):
        attention(q, q, q, np.zeros((2, 3)))
