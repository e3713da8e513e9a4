"""Attention, its layers and rotations give what NumPy gives, and can be trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, ops
from weft_graph.differentiation import differentiate
from weft_graph.errors import ShapeError

RNG = np.random.default_rng(5)
Array = Any


def plain(q: Array, k: Array, v: Array, allowed: Array | bool = True) -> Array:
    """softmax(q k' / sqrt(size)) v, (batch, heads, length, size)."""
    scores = np.where(allowed, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True) @ v


def by_head(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def joined(x: Array) -> Array:
    x = x.swapaxes(1, 2)
    return x.reshape(*x.shape[:2], -1)


def tokens(width: int, name: str = "x") -> weft.Expression:
    return weft.input(name, ("batch", "tokens", width), "float64")


def test_attention_is_softmax_of_products_by_head() -> None:
    q, k, v = (RNG.standard_normal((2, 4, 8)) for _ in range(3))
    y = ops.attention(tokens(8, "q"), tokens(8, "k"), tokens(8, "v"), heads=2, causal=True)
    wanted = joined(plain(*(by_head(x, 2) for x in (q, k, v)), np.tri(4, dtype=bool)))
    assert y.shape == ("batch", "tokens", 8)
    np.testing.assert_allclose(y.eval({"q": q, "k": k, "v": v}), wanted, atol=1e-12)


def test_heads_of_keys_are_shared_and_a_window_hides() -> None:
    q, k = RNG.standard_normal((1, 4, 5, 2)), RNG.standard_normal((1, 2, 5, 2))
    expressions = [weft.input(n, ("batch", h, 5, 2), "float64") for n, h in (("q", 4), ("k", 2))]
    y = ops.attention(expressions[0], expressions[1], expressions[1], window=(1, 0))
    near = np.tri(5, dtype=bool) & ~np.tri(5, k=-2, dtype=bool)
    shared = k.repeat(2, axis=1)
    np.testing.assert_allclose(y.eval({"q": q, "k": k}), plain(q, shared, shared, near), atol=1e-12)


def test_a_rotation_keeps_products_of_tokens_equally_far_apart() -> None:
    angle = np.outer(np.arange(9), [1.0, 0.1])
    x = np.broadcast_to(RNG.standard_normal(4), (1, 1, 9, 4)).copy()
    y = ops.rotary_embedding(
        weft.input("x", ("batch", 1, 9, 4), "float64"), np.cos(angle), np.sin(angle), np.arange(9)[None]
    ).eval({"x": x})[0, 0]
    products = y @ y.T
    for distance in range(9):
        np.testing.assert_allclose(np.diagonal(products, distance), products[0, distance], atol=1e-12)


@pytest.mark.parametrize("kv_heads", [None, 1])
def test_many_heads_are_four_products_around_attention(kv_heads: int | None) -> None:
    x = RNG.standard_normal((3, 5, 6))
    layer = nn.MultiHeadAttention(6, 2, kv_heads=kv_heads, causal=True, name="mix")
    y = layer(tokens(6))
    narrow = 3 * (kv_heads or 2)
    values = {
        f"mix.{name}.{part}": RNG.standard_normal((size, 6) if part == "weight" else (size,))
        for name, size in (("query", 6), ("key", narrow), ("value", narrow), ("out", 6))
        for part in ("weight", "bias")
    }
    assert {p.name for p in y.graph().parameters} == set(values)

    def linear(x: Array, name: str) -> Array:
        return x @ values[f"mix.{name}.weight"].T + values[f"mix.{name}.bias"]

    q, k, v = (by_head(linear(x, name), h) for name, h in (("query", 2), ("key", narrow // 3), ("value", narrow // 3)))
    k, v = (part.repeat(2 // (kv_heads or 2), axis=1) for part in (k, v))
    wanted = linear(joined(plain(q, k, v, np.tri(5, dtype=bool))), "out")
    np.testing.assert_allclose(y.eval({"x": x}, parameters=values), wanted, atol=1e-12)


def test_another_sequence_is_looked_at_through_a_mask() -> None:
    x, seen = RNG.standard_normal((2, 3, 4)), RNG.standard_normal((2, 5, 4))
    there = np.array([[True] * 5, [True, True, False, False, False]])[:, None, None]
    layer = nn.MultiHeadAttention(4, 2)
    mask = weft.input("there", ("batch", 1, 1, "seen"), "bool")
    y = layer(tokens(4), weft.input("seen", ("batch", "seen", 4), "float64"), mask=mask)
    whole = y.eval({"x": x, "seen": seen, "there": there})
    changed = np.where(there[:, 0, 0, :, None], seen, 100.0)
    np.testing.assert_array_equal(y.eval({"x": x, "seen": changed, "there": there}), whole)
    assert np.abs(y.eval({"x": x, "seen": seen, "there": there | True})[1] - whole[1]).max() > 1e-6


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_transformers_layer_adds_both_of_its_parts(norm_first: bool) -> None:
    """Each part by itself is tested elsewhere: here they are put together by hand, with the same parameters."""
    x = RNG.standard_normal((2, 4, 6))
    layer = nn.TransformerLayer(6, 2, 8, dropout=0.5, norm_first=norm_first, activation="relu", name="layer")
    h = tokens(6)
    y = layer(h)

    def fed(h: weft.Expression) -> weft.Expression:
        return layer.down(ops.relu(layer.up(h)))

    if norm_first:
        middle = h + layer.attention(layer.norm1(h))
        wanted = middle + fed(layer.norm2(middle))
    else:
        middle = layer.norm1(h + layer.attention(h))
        wanted = layer.norm2(middle + fed(middle))
    np.testing.assert_allclose(y.eval({"x": x}), wanted.eval({"x": x}), atol=1e-12)
    assert np.abs(y.eval({"x": x}, training=True) - y.eval({"x": x})).max() > 1e-3


def test_a_causal_transformer_never_looks_ahead_and_trains() -> None:
    net = nn.Sequential(nn.TransformerLayer(6, 2, causal=True, dropout=0), nn.TransformerLayer(6, 2, causal=True))
    y = net(tokens(6))
    x = RNG.standard_normal((1, 5, 6))
    later = x.copy()
    later[:, 3:] += 1
    ahead = np.abs(y.eval({"x": x}) - y.eval({"x": later})).max(axis=(0, 2))
    assert not ahead[:3].any()
    assert ahead[3:].all()
    graph = weft.ops.reduce_mean(y * y).graph()
    result = differentiate(graph, graph.outputs[0])
    assert set(result.gradients) == {p.name for p in graph.parameters}
    assert "0.attention.query.weight" in result.gradients


def test_root_mean_square_is_one_after_its_norm() -> None:
    x = RNG.standard_normal((3, 4, 5)) * 7
    y = nn.RMSNorm(5, name="norm")(weft.input("x", ("batch", 4, 5), "float64"))
    assert [p.name for p in y.graph().parameters] == ["norm.scale"]
    np.testing.assert_allclose((y.eval({"x": x}) ** 2).mean(-1), 1, atol=1e-5)


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="7 does not fall into 2 heads"):
        nn.MultiHeadAttention(7, 2)
    with pytest.raises(ValueError, match="no multiple of 3 heads of keys"):
        nn.MultiHeadAttention(8, 4, kv_heads=3)
    with pytest.raises(ValueError, match="'selu'"):
        nn.TransformerLayer(8, 2, activation="selu")
    with pytest.raises(ValueError, match="an RMSNorm normalizes at least one"):
        nn.RMSNorm(())
    with pytest.raises(ShapeError, match=r"'mix' has embed_dim=8.*float64\[batch, tokens, 6\]"):
        nn.MultiHeadAttention(8, 2, name="mix")(tokens(6))
    with pytest.raises(ShapeError, match="does not fall into 3 heads"):
        ops.attention(tokens(8), tokens(8), tokens(8), heads=3)
    with pytest.raises(ShapeError, match="attn_mask"):
        ops.attention(tokens(8), tokens(8), tokens(8), np.zeros((2, 3)), heads=2)
