"""Attention whose scores and probabilities pass through bodies; block by block where there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.attention.forward import attend
from weft_kernels.attention.heads import grouped
from weft_kernels.attention.modified import modified, plain
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
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
