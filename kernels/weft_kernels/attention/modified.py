"""Attention whose scores and probabilities bodies change, over all scores at once: bodies may look at any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft_graph.attributes import as_body
from weft_graph.ir import AttributeValue
from weft_graph.operators.attention import softmax_dtype
from weft_graph.types import DType
from weft_kernels.attention.forward import Attending, shown_softmax
from weft_kernels.attention.heads import Heads, grouped, settings_of
from weft_kernels.attention.visible import Visible
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.run import run_body

Attributes = Mapping[str, AttributeValue]


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
