"""Linear attention: a state instead of scores, chunk by chunk, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft_graph.attributes import as_float, as_int, as_str
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """q (batch, length, heads, group, size), k (..., heads, size), v (..., heads, value size), all wide.

    `decay` is (..., heads, size or 1) and `beta` (..., heads or 1, 1), None where the rule has none. `start` is the
    state before the first token, (batch, heads, size, value size).
    """

    q: Array
    k: Array
    v: Array
    decay: Array | None
    beta: Array | None
    start: Array
    scale: float

    @property
    def length(self) -> int:
        return int(self.q.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A token's: `decayed` state, what of the value it has `missed` (None without beta), what is `written`, `state`."""

    decayed: Array
    missed: Array | None
    written: Array
    state: Array


def tokens_of(xp: Any, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]) -> Tokens:
    """Of a node whose first inputs are LinearAttention's."""
    query, key, value = required(inputs, 3)
    rule, heads = as_str(attributes["update_rule"]), as_int(attributes["kv_num_heads"])
    wide = statistics_dtype(xp, query)
    lead = query.shape[:2]
    group = as_int(attributes["q_num_heads"]) // heads
    size, value_size = key.shape[2] // heads, value.shape[2] // heads

    def apart(array: Array, *shape: int) -> Array:
        return array.astype(wide, copy=False).reshape(*lead, *shape)

    past, decay, beta = (optional(inputs, index) for index in (3, 4, 5))
    zeros = (lead[0], heads, size, value_size)
    return Tokens(
        apart(query, heads, group, size),
        apart(key, heads, size),
        apart(value, heads, value_size),
        apart(decay, heads, decay.shape[2] // heads) if decay is not None and rule.startswith("gated") else None,
        apart(beta, beta.shape[2], 1) if beta is not None and rule.endswith("delta") else None,
        xp.zeros(zeros, dtype=wide) if past is None else past.astype(wide, copy=False),
        as_float(attributes["scale"]) or 1 / math.sqrt(size),
    )


def step_of(xp: Any, tokens: Tokens, state: Array, place: int) -> Step:
    """What token `place` makes of the state before it."""
    k, v = tokens.k[:, place], tokens.v[:, place]
    decayed = state if tokens.decay is None else state * xp.exp(tokens.decay[:, place])[..., None]
    missed, written = None, v
    if tokens.beta is not None:
        missed = v - xp.matmul(k[..., None, :], decayed)[..., 0, :]
        written = tokens.beta[:, place] * missed
    return Step(decayed, missed, written, decayed + k[..., None] * written[..., None, :])


def attended(xp: Any, tokens: Tokens) -> tuple[Array, Array]:
    """(outputs (batch, length, heads, group, value size), the state after the last token)."""
    state = tokens.start
    result = xp.empty((*tokens.q.shape[:4], tokens.v.shape[-1]), dtype=tokens.q.dtype)
    for place in range(tokens.length):
        state = step_of(xp, tokens, state, place).state
        result[:, place] = xp.matmul(tokens.q[:, place], state)
    result *= tokens.scale
    return result, state


@dataclass(frozen=True, slots=True, eq=False)
class TokenGradients:
    """Gradients like what they are of in `Tokens`; those of `decay` and `beta` are summed by who reads them."""

    q: Array
    k: Array
    v: Array
    decay: Array | None
    beta: Array | None


def gradients(
    xp: Any, tokens: Tokens, by_output: Array | None, by_state: Array | None, chunk: int
) -> tuple[TokenGradients, Array]:
    """(gradients of the tokens, of the first state). States between chunks are kept, those within computed again."""
    found = TokenGradients(
        xp.zeros_like(tokens.q),
        xp.zeros_like(tokens.k),
        xp.zeros_like(tokens.v),
        None if tokens.decay is None else xp.zeros_like(tokens.decay),
        None if tokens.beta is None else xp.zeros_like(tokens.beta),
    )
    flowing = xp.zeros_like(tokens.start) if by_state is None else by_state.astype(tokens.start.dtype, copy=False)
    for first, before in reversed(_chunk_starts(xp, tokens, chunk)):
        steps, state = [], before
        for place in range(first, min(first + chunk, tokens.length)):
            steps.append(step_of(xp, tokens, state, place))
            state = steps[-1].state
        for place in reversed(range(first, first + len(steps))):
            step = steps.pop()
            if by_output is not None:
                out = by_output[:, place] * tokens.scale
                found.q[:, place] = xp.matmul(out, step.state.swapaxes(-1, -2))
                flowing = flowing + xp.matmul(tokens.q[:, place].swapaxes(-1, -2), out)
            flowing = _step_back(xp, tokens, (place, step), flowing, found)
    return found, flowing


def _chunk_starts(xp: Any, tokens: Tokens, chunk: int) -> list[tuple[int, Array]]:
    """(first token, state before it) of each chunk."""
    starts, state = [], tokens.start
    for place in range(tokens.length):
        if place % chunk == 0:
            starts.append((place, state))
        state = step_of(xp, tokens, state, place).state
    return starts


def _step_back(xp: Any, tokens: Tokens, at: tuple[int, Step], flowing: Array, found: TokenGradients) -> Array:
    """The gradient of the state before the token, by that of the state after it; fills the token's in `found`."""
    place, step = at
    k = tokens.k[:, place]
    by_key = xp.matmul(flowing, step.written[..., None])[..., 0]
    by_written = xp.matmul(k[..., None, :], flowing)[..., 0, :]
    if tokens.beta is not None and step.missed is not None and found.beta is not None:
        by_beta = xp.sum(by_written * step.missed, axis=-1, keepdims=True)
        found.beta[:, place] = by_beta if found.beta.shape[2] > 1 else xp.sum(by_beta, axis=1, keepdims=True)
        by_written = by_written * tokens.beta[:, place]
        by_key -= xp.matmul(step.decayed, by_written[..., None])[..., 0]
        flowing = flowing - k[..., None] * by_written[..., None, :]
    found.k[:, place] = by_key
    found.v[:, place] = by_written
    if tokens.decay is None or found.decay is None:
        return flowing
    by_decay = xp.sum(flowing * step.decayed, axis=-1)
    alone = found.decay.shape[-1] == by_decay.shape[-1]
    found.decay[:, place] = by_decay if alone else xp.sum(by_decay, axis=-1, keepdims=True)
    return flowing * xp.exp(tokens.decay[:, place])[..., None]  # type: ignore[no-any-return]  # xp is Any
