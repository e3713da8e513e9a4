"""Hamming's window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.signals.window_functions import cosine_window

HOST_INPUTS = (0,)

_COEFFICIENTS = (25 / 46, -21 / 46)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    return (cosine_window(context, inputs, attributes, _COEFFICIENTS),)
