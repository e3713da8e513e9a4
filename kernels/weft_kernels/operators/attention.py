"""Attention in its forms, and what goes with it: rotary embeddings, convolutions with a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft_graph.attributes import as_body, as_int, as_ints
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.operators.attention import PREVIEW_DOMAIN, softmax_dtype
from weft_graph.types import DType
from weft_kernels.arguments import optional, required
from weft_kernels.attention import (
    Attending,
    Flowing,
    Gathered,
    Heads,
    Visible,
    attend,
    attend_backward,
    by_head,
    empty_like_output,
    grouped,
    joined,
    settings_of,
    shown_softmax,
    visible_of,
    with_past,
)
from weft_kernels.element_types import statistics_dtype
from weft_kernels.indexing import checked_indices, summed_rows
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.linear_attention import attended, gradients, tokens_of
from weft_kernels.products import sum_stack
from weft_kernels.run import run_body

# --- A node's inputs and attributes as what the blocks are computed from ----------------------------------------------


def attending_of(xp: Any, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]) -> Attending:
    """Of a node whose first inputs are those of Attention, the counts of keys on the host.

    Raises ValueError where the mask or the counts do not fit what a step brought.
    """
    q, k, v = required(inputs, 3)
    q = by_head(q, attributes.get("q_num_heads"))
    k, v = (by_head(array, attributes.get("kv_num_heads")) for array in (k, v))
    past = optional(inputs, 4)
    k, v = with_past(xp, past, k), with_past(xp, optional(inputs, 5), v)
    kv_heads = k.shape[1]
    mask = optional(inputs, 3)
    if mask is not None and mask.shape[-1] > k.shape[2]:
        raise ValueError(f"attn_mask is for {mask.shape[-1]} keys, and there are {k.shape[2]}")
    before = 0 if past is None else past.shape[2]
    visible = visible_of(attributes, mask, optional(inputs, 6), (q.shape[1], kv_heads, q.shape[2], before))
    heads = Heads(grouped(q, kv_heads), k[:, :, None], v[:, :, None])
    return Attending(xp, heads, visible, settings_of(attributes, q.shape[3]))


# ----------------------------------------------------------------------------------------------------------------------
# Attention whose scores and probabilities bodies change, over all scores at once: bodies may look at any of them.


@dataclass(frozen=True, slots=True, eq=False)
class Modified:
    """All of (batch, heads, queries, keys): scaled products, their probabilities, what bodies made of both."""

    scores: Array
    probabilities: Array
    weights: Array


def plain(xp: Any, q: Array, k: Array, v: Array, attributes: Attributes) -> Attending:
    """Attention that sees everything."""
    heads = Heads(grouped(q, k.shape[1]), k[:, :, None], v[:, :, None])
    return Attending(xp, heads, Visible(None, None, 0, None, None), settings_of(attributes, q.shape[3]))


def modified(
    context: KernelContext, attending: Attending, captured: Sequence[Array], attributes: Attributes
) -> Modified:
    """The scores on their way through the bodies that there are."""
    xp = context.xp
    batch, kv_heads, group, queries, keys = attending.shape
    precision = softmax_dtype(attributes.get("softmax_precision"), DType(attending.heads.q.dtype.name)).numpy
    shape = (batch, kv_heads * group, queries, keys)
    scores = attending.products().reshape(shape).astype(precision, copy=False)
    changed = through(context, "score_mod", (scores, *captured), attributes)
    # A copy, for a body may give what it was given.
    probabilities = shown_softmax(xp, changed.astype(statistics_dtype(xp, changed))).astype(precision, copy=False)
    return Modified(scores, probabilities, through(context, "prob_mod", (probabilities, *captured), attributes))


def through(context: KernelContext, name: str, arrays: Sequence[Array], attributes: Attributes) -> Array:
    """What the body makes of the first array; that itself where there is none."""
    return run_body(context, as_body(attributes[name]), arrays)[0] if name in attributes else arrays[0]


# --- Pairs of elements turned by angles: what RotaryEmbedding and its gradient share ----------------------------------


@dataclass(frozen=True, slots=True)
class Pairs:
    """Where the first and the second of each pair are along the last axis, and how many elements are turned."""

    first: slice
    second: slice
    turned: int


def pairs_of(attributes: Mapping[str, AttributeValue], half: int) -> Pairs:
    """The pairs of a head of which `half` pairs are turned."""
    if as_int(attributes["interleaved"]):
        return Pairs(slice(0, 2 * half, 2), slice(1, 2 * half, 2), 2 * half)
    return Pairs(slice(0, half), slice(half, 2 * half), 2 * half)


def by_token(data: Array, attributes: Mapping[str, AttributeValue]) -> Array:
    """(batch, length, heads, size), a view."""
    if data.ndim == 4:
        return data.transpose(0, 2, 1, 3)
    heads = as_int(attributes["num_heads"])
    return data.reshape(*data.shape[:2], heads, data.shape[2] // heads)


def as_given(tokens: Array, rank: int) -> Array:
    """What is by token in the input's own shape: the other way of `by_token`."""
    if rank == 4:
        return tokens.transpose(0, 2, 1, 3)
    return tokens.reshape(*tokens.shape[:2], tokens.shape[2] * tokens.shape[3])


def places_in(xp: Any, cache: Array, places: Array | None) -> Array | None:
    """The places as rows of the cache. Raises ValueError, with the place, where it has none such."""
    return None if places is None else checked_indices(xp, places, len(cache), wraps=True)


def angles(cache: Array, places: Array | None) -> Array:
    """(batch, length, 1, half): each token's row of a cache."""
    rows = cache if places is None else cache[places]
    return rows[:, :, None]


def turned(xp: Any, tokens: Array, cos: Array, sin: Array, pairs: Pairs) -> Array:
    """A new array like `tokens` (batch, length, heads, size); computed in float32 at least."""
    wide = statistics_dtype(xp, tokens)
    a, b = (tokens[..., part].astype(wide, copy=False) for part in (pairs.first, pairs.second))
    result = xp.empty_like(tokens)
    result[..., pairs.first] = a * cos - b * sin
    result[..., pairs.second] = a * sin + b * cos
    result[..., pairs.turned :] = tokens[..., pairs.turned :]
    return result  # type: ignore[no-any-return]  # xp is Any


# --- A causal convolution of each channel by itself: what CausalConvWithState and its gradient share ------------------


def with_state(xp: Any, data: Array, past: Array | None, width: int) -> Array:
    """(batch, channels, width - 1 + length): the state, or zeros, before the input; float32 at least."""
    wide = statistics_dtype(xp, data)
    before = xp.zeros((*data.shape[:2], width - 1), dtype=wide) if past is None else past.astype(wide, copy=False)
    return xp.concatenate((before, data.astype(wide, copy=False)), axis=2)  # type: ignore[no-any-return]  # xp is Any


def convolved(xp: Any, padded: Array, weight: Array, bias: Array | None) -> Array:
    """The sums over the kernel's width, (batch, channels, length); `padded` is of `with_state`."""
    width = weight.shape[2]
    length = padded.shape[2] - width + 1
    result = xp.zeros((*padded.shape[:2], length), dtype=padded.dtype)
    for place in range(width):
        result += padded[:, :, place : place + length] * weight[:, :, place]
    if bias is not None:
        result += bias[:, None]
    return result  # type: ignore[no-any-return]  # xp is Any


def sigmoid(xp: Any, x: Array) -> Array:
    """1 / (1 + e^-x)."""
    return (xp.tanh(x * 0.5) + 1) * 0.5  # type: ignore[no-any-return]  # xp is Any


@kernel("Attention", host_inputs=(6,), waits=(6,))
def attention(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Values weighed by the softmax of products of queries and keys."""
    xp = context.xp
    q, _, v = required(inputs, 3)
    attending = attending_of(xp, inputs, attributes)
    batch, kv_heads, group, queries, keys = attending.shape
    key, value = attending.heads.k[:, :, 0], attending.heads.v[:, :, 0]
    result, by_head = empty_like_output(xp, (batch, kv_heads * group, queries, value.shape[-1]), q.ndim, q.dtype)
    shown = xp.zeros((batch, kv_heads * group, queries, keys), dtype=q.dtype) if context.asks(3) else None
    attend(
        attending,
        grouped(by_head, kv_heads),
        None if shown is None else grouped(shown, kv_heads),
        as_int(attributes["qk_matmul_output_mode"]),
    )
    outputs = result, key, value.astype(v.dtype, copy=False)
    return outputs if shown is None else (*outputs, shown)


@kernel("AttentionGrad", domain=WEFT_DOMAIN, host_inputs=(6,), waits=(6,))
def attention_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of queries, keys, values, the cache and the mask, from probabilities that are computed again."""
    xp = context.xp
    q, k, v = required(inputs, 3)
    attending = attending_of(xp, inputs, attributes)
    mask = optional(inputs, 3) if context.asks(5) else None
    gathered = _started(xp, attending, inputs, with_mask=mask is not None and mask.dtype.kind not in "biu")
    attend_backward(attending, _flowing(attending, inputs, attributes), gathered)
    batch, kv_heads, group, *rest = gathered.q.shape
    by_q = gathered.q.reshape(batch, kv_heads * group, *rest)
    past = optional(inputs, 4)
    before = 0 if past is None else past.shape[2]
    parts = [(total[:, :, 0, :before], total[:, :, 0, before:]) for total in (gathered.k, gathered.v)]
    empty = xp.zeros((0,), dtype=q.dtype)
    return (
        joined(by_q, q.ndim).astype(q.dtype, copy=False),
        joined(parts[0][1], k.ndim).astype(k.dtype, copy=False),
        joined(parts[1][1], v.ndim).astype(v.dtype, copy=False),
        empty if past is None else parts[0][0].astype(k.dtype, copy=False),
        empty if past is None else parts[1][0].astype(v.dtype, copy=False),
        empty if gathered.mask is None or mask is None else gathered.mask.reshape(mask.shape).astype(mask.dtype),
    )


def _started(xp: Any, attending: Attending, inputs: Sequence[Array | None], *, with_mask: bool) -> Gathered:
    """Zeros, but for what flows into keys and values by the cache that the node gives on."""
    heads, wide = attending.heads, attending.wide
    totals = []
    for array, flowing in ((heads.k, optional(inputs, 8)), (heads.v, optional(inputs, 9))):
        total = xp.zeros(array.shape, dtype=wide)
        if flowing is not None:
            total += flowing[:, :, None]
        totals.append(total)
    mask = attending.visible.mask
    by_mask = xp.zeros(mask.shape, dtype=wide) if with_mask and mask is not None else None
    return Gathered(xp.zeros(heads.q.shape, dtype=wide), totals[0], totals[1], by_mask)


def _flowing(attending: Attending, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]) -> Flowing:
    kv_heads = attending.shape[1]
    out, shown = optional(inputs, 7), optional(inputs, 10)
    return Flowing(
        None if out is None else grouped(by_head(out, attributes.get("q_num_heads")), kv_heads),
        None if shown is None else grouped(shown, kv_heads),
        as_int(attributes["qk_matmul_output_mode"]),
    )


@kernel("FlexAttention", domain=PREVIEW_DOMAIN, waits=True)
def flex_attention(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Attention whose scores and probabilities pass through bodies; block by block where there are none."""
    xp = context.xp
    q, k, v, *captured = required(inputs)
    attending = plain(xp, q, k, v, attributes)
    if "score_mod" not in attributes and "prob_mod" not in attributes:
        out = xp.zeros((*q.shape[:3], v.shape[3]), dtype=q.dtype)
        attend(attending, grouped(out, k.shape[1]))
        return (out,)
    weights = modified(context, attending, captured, attributes).weights.astype(attending.wide, copy=False)
    result = xp.matmul(grouped(weights, k.shape[1]), attending.heads.v.astype(attending.wide, copy=False))
    return (result.reshape(*q.shape[:3], v.shape[3]).astype(q.dtype, copy=False),)


@kernel("FlexAttentionGrad", domain=WEFT_DOMAIN, waits=True)
def flex_attention_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients through bodies that change scores and probabilities."""
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


@kernel("LinearAttention")
def linear_attention(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Outputs of all tokens, and the state after the last one."""
    query, past = required(inputs, 1)[0], optional(inputs, 3)
    result, state = attended(context.xp, tokens_of(context.xp, inputs, attributes))
    batch, length, heads, group, size = result.shape
    given = query.dtype if past is None else past.dtype
    shaped = result.reshape(batch, length, heads * group * size)
    return shaped.astype(query.dtype, copy=False), state.astype(given, copy=False)


@kernel("LinearAttentionGrad", domain=WEFT_DOMAIN)
def linear_attention_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of queries, keys, values, the first state, decays and rates; states are computed again."""
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


@kernel("CausalConvWithState")
def causal_conv_with_state(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A causal convolution of each channel by itself, and the state for what comes after."""
    xp = context.xp
    data, weight = required(inputs, 2)
    width = weight.shape[2]
    padded = with_state(xp, data, optional(inputs, 3), width)
    result = convolved(xp, padded, weight, optional(inputs, 2))
    if attributes["activation"] != "none":
        result *= sigmoid(xp, result)
    state = padded[:, :, padded.shape[2] - width + 1 :]
    return result.astype(data.dtype, copy=False), state.astype(data.dtype, copy=False)


@kernel("CausalConvWithStateGrad", domain=WEFT_DOMAIN)
def causal_conv_with_state_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of the input, the kernels, the bias and the state."""
    xp = context.xp
    data, weight = required(inputs, 2)
    width, length = weight.shape[2], data.shape[2]
    padded = with_state(xp, data, optional(inputs, 3), width)
    flowing, of_state = optional(inputs, 4), optional(inputs, 5)
    by_padded = xp.zeros_like(padded)
    by_weight = xp.zeros(weight.shape, dtype=padded.dtype)
    by_bias = xp.zeros(weight.shape[:1], dtype=padded.dtype)
    if flowing is not None:
        by_sums = flowing.astype(padded.dtype, copy=False)
        if attributes["activation"] != "none":
            by_sums = by_sums * _slope(xp, convolved(xp, padded, weight, optional(inputs, 2)))
        for place in range(width):
            part = slice(place, place + length)
            by_padded[:, :, part] += by_sums * weight[:, :, place]
            by_weight[:, 0, place] = xp.sum(by_sums * padded[:, :, part], axis=(0, 2), dtype=padded.dtype)
        by_bias = xp.sum(by_sums, axis=(0, 2), dtype=padded.dtype)
    if of_state is not None:
        by_padded[:, :, padded.shape[2] - width + 1 :] += of_state
    results = by_padded[:, :, width - 1 :], by_weight, by_bias, by_padded[:, :, : width - 1]
    return tuple(array.astype(data.dtype, copy=False) for array in results)


def _slope(xp: Any, sums: Array) -> Array:
    """Of x * sigmoid(x)."""
    share = sigmoid(xp, sums)
    return share * (1 + sums * (1 - share))  # type: ignore[no-any-return]  # xp is Any


@kernel("RotaryEmbedding", waits=True)
def rotary_embedding(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Pairs of a head's elements turned by the angles of their token's place."""
    xp = context.xp
    data, cos, sin = required(inputs, 3)
    places = places_in(xp, cos, optional(inputs, 3))
    pairs = pairs_of(attributes, cos.shape[-1])
    tokens = turned(xp, by_token(data, attributes), angles(cos, places), angles(sin, places), pairs)
    return (as_given(tokens, data.ndim),)


@kernel("RotaryEmbeddingGrad", domain=WEFT_DOMAIN, waits=True)
def rotary_embedding_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradients of the cosines and sines: of every token that reads them, summed."""
    xp = context.xp
    gradient, data, cache = required(inputs, 3)
    wide, pairs = statistics_dtype(xp, data), pairs_of(attributes, cache.shape[-1])
    flowing, tokens = (by_token(array, attributes).astype(wide, copy=False) for array in (gradient, data))
    (u, v), (a, b) = ((array[..., pairs.first], array[..., pairs.second]) for array in (flowing, tokens))
    places = places_in(xp, cache, optional(inputs, 3))
    results = []
    for by_angle in (u * a + v * b, v * a - u * b):
        rows = xp.sum(by_angle, axis=2, dtype=wide)
        if places is None:
            rows = sum_stack(xp, rows, cache.shape)
        else:
            index = xp.broadcast_to(places, rows.shape[:2]).reshape(-1)
            rows = summed_rows(xp, rows.reshape(-1, cache.shape[1]), index, len(cache))
        results.append(rows.astype(cache.dtype, copy=False))
    return tuple(results)
