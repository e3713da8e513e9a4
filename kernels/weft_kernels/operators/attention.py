"""Values weighed by the softmax of products of queries and keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.attention.forward import attend
from weft_kernels.attention.heads import empty_like_output, grouped
from weft_kernels.attention.reading import attending_of
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (6,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
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
