"""Pointwise nodes as one: on the CPU in parts that stay in a cache, on a GPU as one generated kernel."""

from __future__ import annotations

import numpy as np

from weft_graph.ir import WEFT_DOMAIN, Subgraph
from weft_kernels.arguments import required
from weft_kernels.body import Body
from weft_kernels.cuda.fused import run_generated
from weft_kernels.cuda.module import has_kernels
from weft_kernels.fused_body import run_fused
from weft_kernels.kernel import Attributes, Inputs, KernelContext, Outputs, kernel


@kernel("Fused", domain=WEFT_DOMAIN)
def fused(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Pointwise nodes as one: on the CPU in parts that stay in a cache, on a GPU as one generated kernel."""
    body, arrays = attributes["body"], required(inputs)
    assert isinstance(body, Subgraph), "the schema says so"
    if context.xp is np:
        return run_fused(context, body, arrays)
    generated = run_generated(context, body, arrays) if has_kernels(context.xp) else None
    return Body(context, body, ())(arrays) if generated is None else generated
