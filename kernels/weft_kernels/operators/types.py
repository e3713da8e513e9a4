"""Types of elements: casts, and bits read as another type."""

from __future__ import annotations

from weft_graph.attributes import as_int, as_str
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.types import DType
from weft_kernels.arguments import required
from weft_kernels.casting import bit_cast, cast
from weft_kernels.kernel import Attributes, Inputs, KernelContext, Outputs, kernel


@kernel("Cast")
def cast_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The elements as another type; the array itself where it has it already."""
    (data,) = required(inputs)
    dtype, saturate = DTYPE_OF_NUMBER[as_int(attributes["to"])], bool(as_int(attributes["saturate"]))
    return (cast(context.xp, data, dtype, saturate=saturate, round_mode=as_str(attributes["round_mode"])),)


@kernel("CastLike")
def cast_like(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The elements as the type of another array."""
    data, target = required(inputs)
    dtype, saturate = DType(target.dtype.name), bool(as_int(attributes["saturate"]))
    return (cast(context.xp, data, dtype, saturate=saturate, round_mode=as_str(attributes["round_mode"])),)


@kernel("BitCast")
def bit_cast_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The same bits as another type."""
    (data,) = required(inputs)
    return (bit_cast(data, DTYPE_OF_NUMBER[as_int(attributes["to"])]),)
