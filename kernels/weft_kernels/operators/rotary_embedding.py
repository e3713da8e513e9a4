"""Pairs of a head's elements turned by the angles of their token's place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.attention.rotation import angles, as_given, by_token, pairs_of, places_in, turned
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, cos, sin = required(inputs, 3)
    places = places_in(xp, cos, optional(inputs, 3))
    pairs = pairs_of(attributes, cos.shape[-1])
    tokens = turned(xp, by_token(data, attributes), angles(cos, places), angles(sin, places), pairs)
    return (as_given(tokens, data.ndim),)
