"""Outputs of all tokens, and the state after the last one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.attention.linear import attended, tokens_of
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    query, past = required(inputs, 1)[0], optional(inputs, 3)
    result, state = attended(context.xp, tokens_of(context.xp, inputs, attributes))
    batch, length, heads, group, size = result.shape
    given = query.dtype if past is None else past.dtype
    shaped = result.reshape(batch, length, heads * group * size)
    return shaped.astype(query.dtype, copy=False), state.astype(given, copy=False)
