"""Gradients of GRU's inputs: the gates of all turns at once, from the states in Y, and then the turns backwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.ir import AttributeValue
from weft_graph.shapes.recurrent import GRU
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.recurrent.gru import run_back as run_one_way_back
from weft_kernels.recurrent.layer import backward

HOST_INPUTS = (7,)
IN_FLOAT32 = ("float16", "bfloat16")


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    return backward(context, GRU, inputs, attributes, run_one_way_back)
