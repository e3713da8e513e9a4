"""Gradients of queries, keys, values, the first state, decays and rates; states are computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.attention.linear import gradients, tokens_of
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    tokens = tokens_of(xp, inputs, attributes)
    by_output = optional(inputs, 6)
    if by_output is not None:
        shape = (*tokens.q.shape[:4], tokens.v.shape[-1])
        by_output = by_output.astype(tokens.q.dtype, copy=False).reshape(shape)
    found, start = gradients(xp, tokens, by_output, optional(inputs, 7), as_int(attributes["chunk_size"]))
    results = (found.q, found.k, found.v, start, found.decay, found.beta)
    return tuple(
        _like(xp, gradient, optional(inputs, place), required(inputs, 1)[0]) for place, gradient in enumerate(results)
    )


def _like(xp: Any, gradient: Array | None, like: Array | None, query: Array) -> Array:
    """The gradient in the shape and type of what it is of; an empty vector where that is left out."""
    if gradient is None or like is None:
        return xp.zeros((0,), dtype=query.dtype)  # type: ignore[no-any-return]  # xp is Any
    return gradient.reshape(like.shape).astype(like.dtype, copy=False)
