"""Gradients through bodies that change scores and probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft_graph.attributes import as_body, as_ints
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.attention.heads import grouped
from weft_kernels.attention.modified import modified, plain
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.run import run_body


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    flowing, q, k, v, *captured = required(inputs)
    attending = plain(xp, q, k, v, attributes)
    made, wide, kv_heads = modified(context, attending, captured, attributes), attending.wide, k.shape[1]
    found = [xp.zeros(captured[place].shape, captured[place].dtype) for place in as_ints(attributes["captured"])]

    def back(name: str, given: Array, gradient: Array) -> Array:
        """The gradient of what the body was given; adds to those of the captured values."""
        if name not in attributes:
            return gradient
        arrays = (given, gradient.astype(given.dtype, copy=False), *captured)
        result, *others = run_body(context, as_body(attributes[f"{name}_grad"]), arrays)
        for place, other in enumerate(others):
            found[place] = found[place] + other
        return result.astype(wide, copy=False)

    out = grouped(flowing, kv_heads).astype(wide, copy=False)
    keys, values = (array.astype(wide, copy=False) for array in (attending.heads.k, attending.heads.v))
    weights = grouped(made.weights.astype(wide, copy=False), kv_heads)
    by_value = xp.matmul(weights.swapaxes(-1, -2), out)
    by_weights = xp.matmul(out, values.swapaxes(-1, -2)).reshape(made.weights.shape)
    by_scores = _through_softmax(
        xp, made.probabilities.astype(wide, copy=False), back("prob_mod", made.probabilities, by_weights)
    )
    by_products = grouped(back("score_mod", made.scores, by_scores), kv_heads) * attending.settings.scale
    by_query = xp.matmul(by_products, keys)
    by_key = xp.matmul(by_products.swapaxes(-1, -2), attending.heads.q.astype(wide, copy=False))
    return (
        by_query.reshape(q.shape).astype(q.dtype, copy=False),
        *(_over_group(xp, total, like) for total, like in ((by_key, k), (by_value, v))),
        *found,
    )


def _through_softmax(xp: Any, probabilities: Array, gradient: Array) -> Array:
    weighed = gradient * probabilities
    return weighed - probabilities * xp.sum(weighed, axis=-1, keepdims=True, dtype=weighed.dtype)  # type: ignore[no-any-return]  # xp is Any


def _over_group(xp: Any, total: Array, like: Array) -> Array:
    return xp.sum(total, axis=2, dtype=total.dtype).astype(like.dtype, copy=False)  # type: ignore[no-any-return]  # xp is Any
