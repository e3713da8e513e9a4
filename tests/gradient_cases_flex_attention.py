"""Cases of FlexAttention without bodies; those with bodies are in tests/kernels/test_flex_attention.py."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from gradient_case import GradientCase, floats

DOMAIN = "ai.onnx.preview"


def flex_attention_cases() -> list[GradientCase]:
    q, k, v = floats(2, 4, 3, 2), floats(2, 2, 5, 2, seed=1), floats(2, 2, 5, 3, seed=2)
    return [
        GradientCase("scaled", "FlexAttention", (q, k, v), _attended, {"scale": 0.7}, domain=DOMAIN),
        GradientCase("plain", "FlexAttention", (q, k, v), lambda q, k, v: _attended(q, k, v, 0.5**0.5), domain=DOMAIN),
    ]


def _attended(q: Any, k: Any, v: Any, scale: float = 0.7) -> Any:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, jnp.repeat(k, 2, 1)) * scale
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), jnp.repeat(v, 2, 1))
