"""Cases of what stands around attention: rotations, caches, recurrences, causal convolutions, RMS and MVN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradient_case import Array, GradientCase, floats, integers

Attributes = dict[str, Any]


def _places(shape: tuple[int, int], count: int) -> Array:
    return np.random.default_rng(5).integers(0, count, shape)


_ROTARY: Sequence[tuple[str, tuple[int, ...], tuple[int, ...], Array | None, Attributes]] = (
    ("halves", (2, 2, 3, 4), (6, 2), _places((2, 3), 6), {}),
    ("neighbours", (2, 2, 3, 4), (6, 2), _places((2, 3), 6), {"interleaved": 1}),
    ("part", (1, 2, 3, 6), (5, 1), _places((1, 3), 5), {"rotary_embedding_dim": 2}),
    ("joined", (2, 3, 8), (2, 3, 2), None, {"num_heads": 2}),
    ("joined_neighbours", (2, 3, 12), (2, 3, 2), None, {"num_heads": 2, "interleaved": 1, "rotary_embedding_dim": 4}),
    ("from_the_end", (1, 1, 2, 2), (4, 1), np.array([[-1, 1]]), {}),
    ("shared_places", (2, 1, 3, 2), (4, 1), np.array([[2, 0, 2]]), {}),
    ("shared_angles", (2, 1, 3, 2), (1, 3, 1), None, {}),
    ("no_tokens", (2, 1, 0, 2), (4, 1), np.zeros((2, 0), dtype=np.int64), {}),
)


def rotary_cases() -> list[GradientCase]:
    cases = []
    for name, data, cache, places, attributes in _ROTARY:

        def rotary(
            x: Any, cos: Any, sin: Any, places: Array | None = places, attributes: Attributes = attributes
        ) -> Any:
            shape = x.shape
            if x.ndim == 3:
                heads = attributes["num_heads"]
                x = jnp.moveaxis(x.reshape(*x.shape[:2], heads, x.shape[2] // heads), 2, 1)
            cos, sin = (c if places is None else c[places] for c in (cos, sin))
            half = cos.shape[-1]
            if attributes.get("interleaved"):
                order = np.concatenate([np.arange(0, 2 * half, 2), np.arange(1, 2 * half, 2)])
            else:
                order = np.arange(2 * half)
            pair = x[..., order[:half]] + 1j * x[..., order[half:]]
            turned = pair * (cos + 1j * sin)[:, None]
            back = np.argsort(np.concatenate([order, np.arange(2 * half, x.shape[-1])]))
            y = jnp.concatenate((turned.real, turned.imag, x[..., 2 * half :]), -1)[..., back]
            return (jnp.moveaxis(y, 1, 2) if len(shape) == 3 else y).reshape(shape)

        inputs: tuple[Array, ...] = (floats(*data), floats(*cache, seed=1), floats(*cache, seed=2))
        inputs = inputs if places is None else (*inputs, places)
        cases.append(GradientCase(name, "RotaryEmbedding", inputs, rotary, attributes))
    return cases


def scatter_cases() -> list[GradientCase]:
    cases = []
    for name, cache, update, starts, attributes in (
        ("plain", (2, 3, 5, 2), (2, 3, 2, 2), integers(0, 3), {}),
        ("at_the_start", (2, 4, 2), (2, 4, 2), None, {}),
        ("circular", (3, 4, 2), (3, 3, 2), integers(2, 0, 7), {"mode": "circular"}),
        ("axis", (2, 4, 3), (2, 2, 3), integers(1, 2), {"axis": 1}),
        ("last", (2, 3, 4), (2, 3, 1), integers(3, 0), {"axis": -1}),
        ("empty", (0, 3, 2), (0, 1, 2), integers(), {}),
    ):

        def scattered(
            x: Any, y: Any, starts: Array | None = starts, axis: int = int(attributes.get("axis", -2))
        ) -> Any:
            x, y = jnp.moveaxis(x, axis, 1), jnp.moveaxis(y, axis, 1)
            for sample in range(len(x)):
                first = 0 if starts is None else int(starts[sample])
                places = (first + np.arange(y.shape[1])) % x.shape[1]
                x = x.at[sample, places].set(y[sample])
            return jnp.moveaxis(x, 1, axis)

        inputs: tuple[Array, ...] = (floats(*cache), floats(*update, seed=1))
        inputs = inputs if starts is None else (*inputs, starts)
        cases.append(GradientCase(name, "TensorScatter", inputs, scattered, attributes))
    return cases


def convolution_cases() -> list[GradientCase]:
    cases = []
    for name, length, width, bias, past, activation in (
        ("plain", 5, 3, False, False, "none"),
        ("silu", 4, 3, True, True, "silu"),
        ("swish", 3, 2, True, False, "swish"),
        ("state", 1, 4, False, True, "none"),
        ("one", 3, 1, True, True, "silu"),
        ("short", 2, 5, False, False, "none"),
    ):
        inputs = [
            floats(2, 3, length),
            floats(3, 1, width, seed=1),
            floats(3, seed=2) if bias else None,
            floats(2, 3, width - 1, seed=3) if past else None,
        ]
        while inputs[-1] is None:
            inputs.pop()

        def causal(x: Any, w: Any, *rest: Any, bias: bool = bias, past: bool = past, act: str = activation) -> Any:
            b = rest[0] if bias else jnp.zeros(3)
            before = rest[-1] if past else jnp.zeros((2, 3, w.shape[2] - 1))
            padded = jnp.concatenate((before, x), 2)
            y = jax.lax.conv_general_dilated(padded, w, (1,), "VALID", feature_group_count=3) + b[:, None]
            y = y if act == "none" else y * jax.nn.sigmoid(y)
            return y, padded[:, :, padded.shape[2] - w.shape[2] + 1 :]

        attributes: Attributes = {"activation": activation}
        cases.append(GradientCase(name, "CausalConvWithState", tuple(inputs), causal, attributes, outputs=2))
    return cases


_RECURRENCES: Mapping[str, tuple[str, int, int, bool, int, int]] = {
    # (rule, heads of queries, heads of keys, a state before, width of a decay, heads of beta)
    "linear": ("linear", 2, 2, True, 0, 0),
    "gated": ("gated", 2, 2, False, 3, 0),
    "gated_by_head": ("gated", 4, 2, True, 1, 0),
    "delta": ("delta", 2, 1, False, 0, 1),
    "gated_delta": ("gated_delta", 4, 2, True, 3, 2),
    "gated_delta_one_rate": ("gated_delta", 2, 2, False, 1, 1),
}


def recurrence_cases() -> list[GradientCase]:
    cases = []
    for name, (rule, heads, kv_heads, past, decay, beta) in _RECURRENCES.items():
        batch, length, size, value_size = 2, 5, 3, 2
        inputs = [
            floats(batch, length, heads * size),
            floats(batch, length, kv_heads * size, low=-0.5, high=0.5, seed=1),
            floats(batch, length, kv_heads * value_size, seed=2),
            floats(batch, kv_heads, size, value_size, seed=3) if past else None,
            floats(batch, length, kv_heads * decay, low=-1, high=-0.1, seed=4) if decay else None,
            floats(batch, length, beta, low=0.1, high=0.9, seed=5) if beta else None,
        ]
        while inputs[-1] is None:
            inputs.pop()
        present = tuple(x is not None for x in (*inputs, None, None, None))[:6]

        def recurrent(*xs: Any, present: tuple[bool, ...] = present, heads: int = heads, kv: int = kv_heads) -> Any:
            given = iter(xs)
            q, k, v, state, g, b = (next(given) if there else None for there in present)
            q, k, v = (x.reshape(*x.shape[:2], n, -1) for x, n in ((q, heads), (k, kv), (v, kv)))
            state = jnp.zeros((q.shape[0], kv, k.shape[-1], v.shape[-1])) if state is None else state
            outputs = []
            for t in range(q.shape[1]):
                if g is not None:
                    state = state * jnp.exp(g[:, t].reshape(g.shape[0], kv, -1))[..., None]
                new = v[:, t]
                if b is not None:
                    new = b[:, t][..., None] * (new - jnp.einsum("bhkv,bhk->bhv", state, k[:, t]))
                state = state + jnp.einsum("bhk,bhv->bhkv", k[:, t], new)
                read = jnp.repeat(state, heads // kv, axis=1)
                outputs.append(jnp.einsum("bhk,bhkv->bhv", q[:, t], read) * 0.5)
            return jnp.stack(outputs, 1).reshape(q.shape[0], q.shape[1], -1), state

        attributes: Attributes = {
            "update_rule": rule, "q_num_heads": heads, "kv_num_heads": kv_heads, "scale": 0.5, "chunk_size": 2,
        }  # fmt: skip
        cases.append(GradientCase(name, "LinearAttention", tuple(inputs), recurrent, attributes, outputs=2))
    return cases


def root_mean_square_cases() -> list[GradientCase]:
    cases = []
    for name, shape, axis, scale in (
        ("last", (4, 5), -1, (5,)),
        ("two", (2, 3, 4), 1, (3, 4)),
        ("all", (2, 3), 0, (2, 3)),
        ("one_scale", (3, 4), 1, ()),
        ("stretched", (2, 3, 4), 1, (4,)),
        ("empty", (0, 4), -1, (4,)),
    ):

        def over_root(x: Any, s: Any, axes: tuple[int, ...] = tuple(range(axis % len(shape), len(shape)))) -> Any:
            return x / jnp.sqrt(jnp.mean(x * x, axis=axes, keepdims=True) + 0.01) * s

        attributes: Attributes = {"axis": axis, "epsilon": 0.01}
        inputs = (floats(*shape), floats(*scale, seed=1))
        cases.append(GradientCase(name, "RMSNormalization", inputs, over_root, attributes))
    return cases


def mean_variance_cases() -> list[GradientCase]:
    cases = []
    for name, shape, axes in (
        ("channels", (2, 3, 2, 2), None),
        ("rows", (3, 4), (1,)),
        ("from_the_end", (2, 3, 4), (-1, 0)),
        ("empty", (0, 3), (0,)),
    ):

        def normalized(x: Any, axes: tuple[int, ...] = axes or (0, 2, 3)) -> Any:
            return (x - jnp.mean(x, axes, keepdims=True)) / (jnp.std(x, axes, keepdims=True) + 1e-9)

        attributes: Attributes = {} if axes is None else {"axes": axes}
        cases.append(GradientCase(name, "MeanVarianceNormalization", (floats(*shape),), normalized, attributes))
    still = np.array([[2.0, 2.0, 2.0], [1.0, 2.0, 4.0]])
    cases.append(
        GradientCase(
            "still",
            "MeanVarianceNormalization",
            (still,),
            lambda x: jnp.concatenate((0 * x[:1], (x[1:] - jnp.mean(x[1:])) / (jnp.std(x[1:]) + 1e-9)), axis=0),
            {"axes": (1,)},
            smooth=False,
        )
    )
    return cases
