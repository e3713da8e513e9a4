"""Cases of Attention: heads that are joined or shared, masks, windows, caches, caps, and every output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from gradient_case import Array, GradientCase, floats


@dataclass(frozen=True)
class _Shapes:
    """What one case is made of; heads are joined where `attributes` names their counts."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    mask: Array | tuple[int, ...] | None = None
    past: int = 0
    counts: tuple[int, ...] | None = None
    outputs: int = 1


_HIDDEN = np.array([[True, False, True, True, True], [False] * 5, [True] * 5])
_MINUS = np.where(np.arange(15).reshape(3, 5) % 4 == 3, -np.inf, 0.25)
_CASES: Mapping[str, tuple[_Shapes, dict[str, Any]]] = {
    "plain": (_Shapes((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3)), {}),
    "shared": (_Shapes((2, 4, 3, 2), (2, 2, 4, 2), (2, 2, 4, 2)), {"scale": 0.7}),
    "one_head_of_keys": (_Shapes((1, 3, 2, 2), (1, 1, 4, 2), (1, 1, 4, 2)), {"is_causal": 1}),
    "joined": (_Shapes((2, 3, 8), (2, 4, 8), (2, 4, 4)), {"q_num_heads": 4, "kv_num_heads": 4}),
    "joined_shared": (_Shapes((2, 3, 8), (2, 4, 4), (2, 4, 6)), {"q_num_heads": 4, "kv_num_heads": 2}),
    "causal": (_Shapes((1, 2, 4, 3), (1, 2, 4, 3), (1, 2, 4, 3)), {"is_causal": 1}),
    "causal_longer": (_Shapes((1, 2, 3, 3), (1, 2, 5, 3), (1, 2, 5, 3)), {"is_causal": 1, "softcap": 1.5}),
    "window": (_Shapes((1, 1, 5, 2), (1, 1, 6, 2), (1, 1, 6, 2)), {"left_window_size": 1, "right_window_size": 2}),
    "mask": (_Shapes((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4), (3, 5)), {}),
    "mask_of_all": (_Shapes((2, 4, 3, 2), (2, 2, 5, 2), (2, 2, 5, 2), (2, 4, 3, 5)), {"softcap": 2.0}),
    "mask_of_heads": (_Shapes((2, 4, 3, 2), (2, 2, 5, 2), (2, 2, 5, 2), (4, 1, 5)), {}),
    "mask_of_samples": (_Shapes((2, 2, 3, 2), (2, 2, 5, 2), (2, 2, 5, 2), (2, 1, 3, 4)), {"is_causal": 1}),
    "mask_of_keys": (_Shapes((2, 2, 3, 2), (2, 2, 5, 2), (2, 2, 5, 2), (5,)), {}),
    "hidden": (_Shapes((2, 2, 3, 2), (2, 2, 5, 2), (2, 2, 5, 2), _HIDDEN), {}),
    "minus_infinity": (_Shapes((1, 2, 3, 2), (1, 2, 5, 2), (1, 2, 5, 2), _MINUS), {"softcap": 1.0}),
    "cache": (_Shapes((2, 2, 2, 3), (2, 2, 2, 3), (2, 2, 2, 4), None, 3, None, 3), {"is_causal": 1}),
    "cache_joined": (
        _Shapes((2, 2, 8), (2, 3, 4), (2, 3, 4), (2, 5), 2),
        {"q_num_heads": 4, "kv_num_heads": 2, "left_window_size": 2},
    ),
    "counts": (_Shapes((3, 2, 2, 2), (3, 1, 5, 2), (3, 1, 5, 2), None, 0, (5, 3, 1)), {"is_causal": 1}),
    "counts_none": (_Shapes((2, 1, 2, 2), (2, 1, 3, 2), (2, 1, 3, 2), None, 0, (0, 3)), {}),
    "raw": (_Shapes((1, 2, 2, 3), (1, 2, 3, 3), (1, 2, 3, 3), (2, 3), 0, None, 4), {"softcap": 1.5}),
    "capped": (
        _Shapes((1, 2, 2, 3), (1, 2, 3, 3), (1, 2, 3, 3), (2, 3), 0, None, 4),
        {"softcap": 1.5, "qk_matmul_output_mode": 1},
    ),
    "biased": (
        _Shapes((1, 2, 2, 3), (1, 2, 3, 3), (1, 2, 3, 3), (2, 3), 0, None, 4),
        {"softcap": 1.5, "qk_matmul_output_mode": 2},
    ),
    "probabilities": (
        _Shapes((1, 4, 3, 3), (1, 2, 3, 3), (1, 2, 3, 3), None, 1, None, 4),
        {"qk_matmul_output_mode": 3, "is_causal": 1},
    ),
    "no_queries": (_Shapes((2, 1, 0, 2), (2, 1, 3, 2), (2, 1, 3, 2)), {}),
    "no_keys": (_Shapes((2, 1, 3, 2), (2, 1, 0, 2), (2, 1, 0, 2)), {}),
    "no_samples": (_Shapes((0, 2, 3, 2), (0, 2, 3, 2), (0, 2, 3, 2), (3, 3)), {"is_causal": 1}),
}


def attention_cases() -> list[GradientCase]:
    cases = []
    for name, (shapes, attributes) in _CASES.items():
        inputs: list[Array | None] = [floats(*shapes.q), floats(*shapes.k, seed=1), floats(*shapes.v, seed=2)]
        fixed: set[int] = set()
        if isinstance(shapes.mask, tuple):
            inputs.append(floats(*shapes.mask, seed=3))
        else:
            inputs.append(shapes.mask)
            fixed = set() if shapes.mask is None or shapes.mask.dtype == bool else {3}
        kv_heads = attributes.get("kv_num_heads", shapes.k[1])
        sizes = [shape[-1] // (kv_heads if len(shape) == 3 else 1) for shape in (shapes.k, shapes.v)]
        inputs += [
            floats(shapes.q[0], kv_heads, shapes.past, size, seed=4 + place) if shapes.past else None
            for place, size in enumerate(sizes)
        ]
        inputs.append(None if shapes.counts is None else np.array(shapes.counts, dtype=np.int64))
        while inputs[-1] is None:
            inputs.pop()

        def reference(*xs: Any, inputs: Any = tuple(inputs), fixed: Any = frozenset(fixed), a: Any = attributes,
                      outputs: int = shapes.outputs) -> Any:  # fmt: skip
            given = iter(xs)
            arrays = [
                next(given) if x is not None and x.dtype == np.float64 and place not in fixed else x
                for place, x in enumerate(inputs)
            ]
            return _attention(*arrays, *(None,) * (7 - len(arrays)), a)[:outputs]

        cases.append(
            GradientCase(
                name, "Attention", tuple(inputs), reference, attributes, shapes.outputs, frozenset(fixed), smooth=True
            )
        )
    return cases


def _attention(
    q: Any, k: Any, v: Any, mask: Any, past_key: Any, past_value: Any, counts: Any, attributes: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The definition, over all scores at once."""
    rank = q.ndim
    if rank == 3:
        heads, kv_heads = attributes["q_num_heads"], attributes["kv_num_heads"]
        q, k, v = (
            jnp.moveaxis(x.reshape(*x.shape[:2], n, x.shape[2] // n), 2, 1)
            for x, n in ((q, heads), (k, kv_heads), (v, kv_heads))
        )
    offset = jnp.zeros((1, 1, 1, 1), dtype=int)
    if past_key is not None:
        offset = offset + past_key.shape[2]
        k, v = jnp.concatenate((past_key, k), 2), jnp.concatenate((past_value, v), 2)
    group, queries, keys = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    if counts is not None:
        offset = counts.reshape(-1, 1, 1, 1) - queries
    raw = jnp.einsum("bhqd,bhkd->bhqk", q, jnp.repeat(k, group, 1)) * attributes.get("scale", q.shape[-1] ** -0.5)
    cap = attributes.get("softcap", 0.0)
    capped = jnp.tanh(raw / cap) * cap if cap else raw
    ahead = jnp.arange(keys) - jnp.arange(queries)[:, None] - offset
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    allowed = jnp.ones((1, 1, queries, keys), dtype=bool)
    if attributes.get("is_causal"):
        allowed = allowed & (ahead <= 0)
    if left >= 0:
        allowed = allowed & (ahead >= -left)
    if right >= 0:
        allowed = allowed & (ahead <= right)
    if counts is not None:
        allowed = allowed & (jnp.arange(keys) < counts.reshape(-1, 1, 1, 1))
    biased = capped
    if mask is not None:
        short = [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])]
        if mask.dtype == bool:
            allowed = allowed & jnp.pad(mask, short)
        else:
            allowed = allowed & jnp.pad(mask != -np.inf, short)
            biased = biased + jnp.pad(jnp.where(mask == -np.inf, 0.0, mask), short)
    allowed = jnp.broadcast_to(allowed, raw.shape)
    # What nothing is seen of is kept out of the exponential, for 0 * NaN is NaN in a gradient.
    raised = jnp.where(allowed, jnp.exp(jnp.where(allowed, biased, 0.0)), 0.0)
    sums = jnp.sum(raised, -1, keepdims=True)
    probabilities = raised / jnp.where(sums == 0, 1.0, sums)
    y = jnp.einsum("bhqk,bhkd->bhqd", probabilities, jnp.repeat(v, group, 1))
    if rank == 3:
        y = jnp.moveaxis(y, 1, 2).reshape(y.shape[0], queries, y.shape[1] * y.shape[3])
    shown = (raw, capped, biased, probabilities)[attributes.get("qk_matmul_output_mode", 0)]
    return y, k, v, shown
