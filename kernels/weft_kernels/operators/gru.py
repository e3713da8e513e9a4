"""Gated recurrent units: one product for all turns' inputs, and one for each turn's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_graph.shapes.recurrent import GRU
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.recurrent.gru import run as run_one_way
from weft_kernels.recurrent.layer import forward

HOST_INPUTS = (4,)
IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    return forward(context.xp, GRU, inputs, attributes, run_one_way)
