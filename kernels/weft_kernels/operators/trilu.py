"""A triangle of matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (1,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs, 1)
    given = optional(inputs, 1)
    diagonal = 0 if given is None else int(given.reshape(-1)[0])
    rows, columns = xp.arange(data.shape[-2])[:, None], xp.arange(data.shape[-1])
    # Differences, because k may be as large as an int64 gets.
    inside = columns - rows >= diagonal if as_int(attributes["upper"]) else columns - rows <= diagonal
    return (xp.where(inside, data, data.dtype.type(0)),)
