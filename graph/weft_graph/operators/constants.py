"""Arrays made of shapes and numbers."""

from __future__ import annotations

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.dimensions import Amount, Dim, agree, as_dim, minus, over, plus, product
from weft_graph.folding import FOLD_FILLED, FOLD_RANGE, FOLD_SHAPE, FOLD_SIZE
from weft_graph.formals import ANY, BOOLEANS, FLOATS, INDICES, INT64, NUMBERS, required, setting
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER, NUMBER_OF_DTYPE
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.arranging import infer_shape, range_length
from weft_graph.shapes.broadcasting import check_same_dtype, dtype_attribute, infer_axis
from weft_graph.shapes.flops import moved
from weft_graph.shapes.gradients import apply, flat, incoming
from weft_graph.types import DType, TensorType


def _infer_shape(context: InferContext) -> tuple[TensorType, ...]:
    end = context.attribute("end")
    dims = context.input(0).shape[as_int(context.attribute("start")) : None if end is None else as_int(end)]
    return (TensorType(DType.INT64, (len(dims),)),)


SHAPE = OpSchema(
    op_type="Shape",
    inputs=(required("data", ANY),),
    outputs=(required("shape", INT64),),
    infer=_infer_shape,
    attributes={"start": Attribute(int, default=0), "end": Attribute(int)},
    flops=moved,
    shape_only=(0,),
    folding=FOLD_SHAPE,
)
"""Shape: the dimensions of the input as a list, those from `start` to before `end`."""


def _infer_size(context: InferContext) -> tuple[TensorType, ...]:
    return (TensorType(DType.INT64, ()),)


SIZE = OpSchema(
    op_type="Size",
    inputs=(required("data", ANY),),
    outputs=(required("size", INT64),),
    infer=_infer_size,
    flops=moved,
    shape_only=(0,),
    folding=FOLD_SIZE,
)
"""Size: how many elements the input has."""


_RANGE_DTYPES = FLOATS | INDICES | {DType.INT16}


def _infer_range(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 0, 1, 2)
    if not all(agree(product(context.input(index).shape), 1) for index in range(3)):
        raise context.shape_error("start, limit and delta must be one number each")
    return (TensorType(context.input(0).dtype, (_count(context),)),)


def _count(context: InferContext) -> Dim:
    """How many numbers there are: a number, or what follows from dimensions, or known only in a step."""
    known = [context.constant(index) for index in range(3)]
    numbers = [array.reshape(-1)[0].item() for array in known if array is not None]
    if len(numbers) == 3:
        try:
            return range_length(*numbers)
        except ValueError as error:
            raise context.shape_error(str(error)) from None
    start, limit, delta = (_amount(context, index) for index in range(3))
    length = minus(limit, start)
    if length is None or not isinstance(delta, int) or delta < 1:
        return context.unknown()
    count = length if delta == 1 else over(plus(length, delta - 1), delta)
    return context.unknown() if count is None else as_dim(count)


def _amount(context: InferContext, index: int) -> Amount:
    amounts = context.amounts(index)
    return None if amounts is None else amounts[0]


RANGE = OpSchema(
    op_type="Range",
    inputs=(required("start", _RANGE_DTYPES), required("limit", _RANGE_DTYPES), required("delta", _RANGE_DTYPES)),
    outputs=(required("output", _RANGE_DTYPES),),
    infer=_infer_range,
    # It is for float16 and bfloat16 alone, which are computed in float32 and rounded once; a file may carry it.
    attributes={"stash_type": Attribute(int, default=1)},
    flops=moved,
    folding=FOLD_RANGE,
)
"""Range: the numbers from `start` to before `limit` by `delta`, all three constants of the graph."""


_EYE_LIKE_DTYPES = NUMBERS | BOOLEANS


def _infer_eye_like(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    if data.rank != 2:
        raise context.shape_error(f"the input must be a matrix, got {data}")
    dtype = data.dtype if context.attribute("dtype") is None else dtype_attribute(context, "dtype")
    if dtype not in _EYE_LIKE_DTYPES:
        raise context.dtype_error(f"dtype is {dtype}, which is none of {', '.join(sorted(_EYE_LIKE_DTYPES))}")
    return (TensorType(dtype, data.shape),)


EYE_LIKE = OpSchema(
    op_type="EyeLike",
    inputs=(required("input", _EYE_LIKE_DTYPES),),
    outputs=(required("output", _EYE_LIKE_DTYPES),),
    infer=_infer_eye_like,
    gradient=flat,
    attributes={"dtype": Attribute(int), "k": Attribute(int, default=0)},
    flops=moved,
)
"""EyeLike: a matrix of the shape of the input, 1 on diagonal `k` and 0 elsewhere."""


def _infer_constant_of_shape(context: InferContext) -> tuple[TensorType, ...]:
    shape, number = infer_shape(context, 0, "input"), as_int(context.attribute("dtype"))
    dtype = DTYPE_OF_NUMBER.get(number)
    if dtype is None:
        known = ", ".join(f"{key} {value}" for key, value in DTYPE_OF_NUMBER.items())
        raise context.dtype_error(f"dtype is element type {number}, which is none of {known}")
    return (TensorType(dtype, shape),)


CONSTANT_OF_SHAPE = OpSchema(
    op_type="ConstantOfShape",
    inputs=(required("input", INT64),),
    outputs=(required("output", ANY),),
    infer=_infer_constant_of_shape,
    attributes={
        "value": Attribute(float, default=0.0),
        "dtype": Attribute(int, default=NUMBER_OF_DTYPE[DType.FLOAT32]),
    },
    flops=moved,
    folding=FOLD_FILLED,
)
"""ConstantOfShape: a tensor of the shape that the input lists, all of it `value`.

ONNX has `value` as a tensor of one element: here it is that number, and `dtype` ONNX's number of its type.
"""


def _infer_one_hot(context: InferContext) -> tuple[TensorType, ...]:
    indices, values = context.input(0), context.input(2)
    depth = _depth(context)
    if values.rank != 1 or not agree(values.shape[0], 2):
        raise context.shape_error(f"values {values} must be two numbers")
    axis = infer_axis(context, indices.rank + 1)
    return (TensorType(values.dtype, (*indices.shape[:axis], depth, *indices.shape[axis:])),)


def _depth(context: InferContext) -> Dim:
    """The number of classes: it may come as a number of any type."""
    given, known = context.input(1), context.constant(1)
    if given.rank > 1 or not agree(product(given.shape), 1):
        raise context.shape_error(f"depth {given} must be one number")
    dims = (int(known.reshape(-1)[0]),) if known is not None else context.dims(1)
    depth = context.unknown() if dims is None else dims[0]
    if isinstance(depth, int) and depth < 1:
        raise context.shape_error(f"depth {depth} must be at least 1")
    return depth


def _one_hot_gradient(context: GradientContext) -> tuple[str | None, ...]:
    if not context.needs(2):
        return None, None, None
    gradient = incoming(context)
    switch = context.constant(np.array([0, 1], dtype=context.type_of(gradient).dtype.numpy))
    chosen = apply(
        context, "OneHot", context.input(0), context.input(1), switch, axis=as_int(context.attribute("axis"))
    )
    on = apply(context, "ReduceSum", apply(context, "Mul", gradient, chosen), keepdims=0)
    off = apply(context, "Sub", apply(context, "ReduceSum", gradient, keepdims=0), on)
    first = context.constant(np.zeros(1, dtype=np.int64))
    both = (apply(context, "Unsqueeze", value, first) for value in (off, on))
    return None, None, apply(context, "Concat", *both, axis=0)


ONE_HOT = OpSchema(
    op_type="OneHot",
    inputs=(required("indices", NUMBERS), setting(required("depth", NUMBERS)), setting(required("values", ANY))),
    outputs=(required("output", ANY),),
    infer=_infer_one_hot,
    gradient=_one_hot_gradient,
    attributes={"axis": Attribute(int, default=-1)},
    flops=moved,
)
"""OneHot: along a new dimension `axis` of `depth` elements the second of `values` at the index, the first elsewhere.

An index outside [-depth, depth) gives the first value everywhere.
"""
