"""1 on a diagonal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs)
    dtype = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy if "dtype" in attributes else data.dtype
    rows, columns = xp.arange(data.shape[0])[:, None], xp.arange(data.shape[1])
    return ((columns - rows == as_int(attributes["k"])).astype(dtype),)
