"""One number at every place of a shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (0,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    (shape,) = required(inputs)
    dtype = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy
    return (context.xp.full(tuple(shape.tolist()), attributes["value"], dtype=dtype),)
