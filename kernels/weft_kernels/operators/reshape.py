"""The array in another shape; a view where its layout allows one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.reshaping import reshaped
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (1,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    data, target = required(inputs)
    allow_zero = bool(as_int(attributes["allowzero"]))
    return (data.reshape(reshaped(data.shape, target.tolist(), allow_zero=allow_zero)),)
