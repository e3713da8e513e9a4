"""Arrays made of shapes and numbers."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.shapes.arranging import range_length
from weft_graph.shapes.broadcasting import normalised
from weft_kernels.arguments import required
from weft_kernels.element_types import computed_in
from weft_kernels.kernel import Attributes, Inputs, KernelContext, Outputs, kernel


@kernel("Shape", waits=True)
def shape(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The dimensions as a list."""
    (data,) = required(inputs)
    end = as_int(attributes["end"]) if "end" in attributes else None
    return (context.xp.asarray(data.shape[as_int(attributes["start"]) : end], dtype=context.xp.int64),)


@kernel("Size", waits=True)
def size(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """How many elements there are."""
    (data,) = required(inputs)
    return (context.xp.asarray(data.size, dtype=context.xp.int64),)


@kernel("Range", host_inputs=(0, 1, 2))
def range_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Numbers at equal distances."""
    xp = context.xp
    start, limit, delta = (array.reshape(-1)[0] for array in required(inputs))
    count = range_length(start.item(), limit.item(), delta.item())
    wide = computed_in(start.dtype)
    made = start.astype(wide) + xp.arange(count, dtype=wide) * delta.astype(wide)
    return (made.astype(start.dtype, copy=False),)


@kernel("EyeLike")
def eye_like(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """1 on a diagonal."""
    xp = context.xp
    (data,) = required(inputs)
    dtype = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy if "dtype" in attributes else data.dtype
    rows, columns = xp.arange(data.shape[0])[:, None], xp.arange(data.shape[1])
    return ((columns - rows == as_int(attributes["k"])).astype(dtype),)


@kernel("ConstantOfShape", host_inputs=(0,))
def constant_of_shape(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """One number at every place of a shape."""
    (shape,) = required(inputs)
    dtype = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy
    return (context.xp.full(tuple(shape.tolist()), attributes["value"], dtype=dtype),)


@kernel("OneHot", host_inputs=(1,))
def one_hot(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """One of two values, by whether a place is that of the index."""
    xp = context.xp
    indices, depth, values = required(inputs)
    count, axis = int(depth.reshape(-1)[0]), as_int(attributes["axis"])
    wide = xp.expand_dims(indices.astype(xp.int64, copy=False), axis)
    places = xp.arange(count).reshape(-1, *(1,) * (wide.ndim - 1 - normalised(axis, wide.ndim)))
    chosen = (wide == places) | (wide == places - count)
    return (xp.where(chosen, values[1], values[0]),)
