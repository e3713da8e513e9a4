"""Softmax along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.softmax import softmax

IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    (scores,) = required(inputs)
    return (softmax(context.xp, scores, as_int(attributes["axis"]), context.out(0, scores.dtype)),)
