"""Attention whose scores and probabilities pass through bodies; block by block where there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_body
from weft_graph.ir import AttributeValue
from weft_graph.operators.flex_attention import softmax_dtype
from weft_graph.types import DType
from weft_kernels.arguments import required
from weft_kernels.attention.forward import Attending, attend, shown_softmax
from weft_kernels.attention.heads import Heads, grouped, settings_of
from weft_kernels.attention.visible import Visible
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.normalization import statistics_dtype
from weft_kernels.run import run_body


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    q, k, v, *captured = required(inputs)
    kv_heads = k.shape[1]
    heads = Heads(grouped(q, kv_heads), k[:, :, None], v[:, :, None])
    attending = Attending(xp, heads, Visible(None, None, 0, None, None), settings_of(attributes, q.shape[3]))
    if "score_mod" not in attributes and "prob_mod" not in attributes:
        out = xp.zeros((*q.shape[:3], v.shape[3]), dtype=q.dtype)
        attend(attending, grouped(out, kv_heads))
        return (out,)
    precision = softmax_dtype(attributes.get("softmax_precision"), DType(q.dtype.name)).numpy
    scores = attending.products().reshape(*q.shape[:3], k.shape[2]).astype(precision, copy=False)
    if "score_mod" in attributes:
        (scores,) = run_body(context, as_body(attributes["score_mod"]), (scores, *captured))
    # A copy, for a body may give what it was given.
    probabilities = shown_softmax(xp, scores.astype(statistics_dtype(xp, scores))).astype(precision, copy=False)
    if "prob_mod" in attributes:
        (probabilities,) = run_body(context, as_body(attributes["prob_mod"]), (probabilities, *captured))
    weights = grouped(probabilities.astype(attending.wide, copy=False), kv_heads)
    result = xp.matmul(weights, heads.v.astype(attending.wide, copy=False))
    return (result.reshape(*q.shape[:3], v.shape[3]).astype(q.dtype, copy=False),)
