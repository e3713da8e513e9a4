"""Range: the numbers from `start` to before `limit` by `delta`, all three constants of the graph."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INDICES, required
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.flops import moved
from weft_graph.shapes.ranges import range_length
from weft_graph.types import TensorType

_DTYPES = FLOATS | INDICES


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 0, 1, 2)
    numbers = []
    for index in range(3):
        known = context.constant(index)
        if known is None or known.size != 1:
            raise context.shape_error("start, limit and delta must be constants of the graph, one number each")
        numbers.append(known.reshape(-1)[0].item())
    try:
        return (TensorType(context.input(0).dtype, (range_length(*numbers),)),)
    except ValueError as error:
        raise context.shape_error(str(error)) from None


SCHEMA = OpSchema(
    op_type="Range",
    inputs=(required("start", _DTYPES), required("limit", _DTYPES), required("delta", _DTYPES)),
    outputs=(required("output", _DTYPES),),
    infer=_infer,
    # It is for float16 alone, whose numbers are exact products here; a file may carry it.
    attributes={"stash_type": Attribute(int, default=1)},
    flops=moved,
)
