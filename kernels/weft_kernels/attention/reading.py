"""A node's inputs and attributes as what the blocks are computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.attention.forward import Attending
from weft_kernels.attention.heads import Heads, by_head, grouped, settings_of, with_past
from weft_kernels.attention.visible import visible_of
from weft_kernels.kernel import Array


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
