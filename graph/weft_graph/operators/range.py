"""Range: the numbers from `start` to before `limit` by `delta`, all three constants of the graph."""

from __future__ import annotations

from weft_graph.dimensions.amounts import Amount, as_dim, minus, over, plus
from weft_graph.dimensions.dims import Dim, agree, product
from weft_graph.formals import FLOATS, INDICES, required
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.flops import moved
from weft_graph.shapes.ranges import range_length
from weft_graph.types import DType, TensorType

_DTYPES = FLOATS | INDICES | {DType.INT16}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
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


SCHEMA = OpSchema(
    op_type="Range",
    inputs=(required("start", _DTYPES), required("limit", _DTYPES), required("delta", _DTYPES)),
    outputs=(required("output", _DTYPES),),
    infer=_infer,
    # It is for float16 and bfloat16 alone, which are computed in float32 and rounded once; a file may carry it.
    attributes={"stash_type": Attribute(int, default=1)},
    flops=moved,
)
