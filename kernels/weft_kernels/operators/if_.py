"""One of two bodies; the other is not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_body
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.run import run_body

HOST_INPUTS = (0,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    condition, *captured = required(inputs)
    if condition.size != 1:
        raise ValueError(f"the condition must be one element, and has {condition.size}")
    branch = "then_branch" if condition.reshape(-1)[0] else "else_branch"
    return run_body(context, as_body(attributes[branch]), captured)
