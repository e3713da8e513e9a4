"""The elements as another type; the array itself where it has it already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int, as_str
from weft_graph.ir import AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.arguments import required
from weft_kernels.casting import cast
from weft_kernels.kernel import Array, KernelContext


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    (data,) = required(inputs)
    dtype, saturate = DTYPE_OF_NUMBER[as_int(attributes["to"])], bool(as_int(attributes["saturate"]))
    return (cast(context.xp, data, dtype, saturate=saturate, round_mode=as_str(attributes["round_mode"])),)
