"""Gradients of queries, keys, values, the cache and the mask, from probabilities that are computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.attention.backward import Flowing, Gathered, attend_backward
from weft_kernels.attention.forward import Attending
from weft_kernels.attention.heads import by_head, grouped, joined
from weft_kernels.attention.reading import attending_of
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (6,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
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
