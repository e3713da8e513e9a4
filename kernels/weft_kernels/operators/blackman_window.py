"""Blackman's window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.signals.window_functions import cosine_window

HOST_INPUTS = (0,)

_COEFFICIENTS = (0.42, -0.5, 0.08)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    return (cosine_window(context, inputs, attributes, _COEFFICIENTS),)
