"""UniqueRows(ids ...): the rows of a table that a step reads, each once, and for each `ids` where its rows are.

`rows_ids` has as many elements as all ids together: the distinct ids, ascending, and then -1 for each place left over.
Each `index` has the shape of its `ids`, and `rows_ids[index]` is the row that the id names.

The attributes `readers`, `wraps`, `padded` and `padding_ids` have an item for each `ids`: the name of the node that
reads the table by them, for messages; 1 where ids below 0 count from the end, as Gather's do; 1 where the id in
`padding_ids` names no row, as Embedding's `padding_id`: its index is -1, and it is not among `rows_ids`. `rows` is how
many rows the table has.
"""

from __future__ import annotations

from weft_graph.dimensions.dims import product, total
from weft_graph.formals import INDICES, INT64, required, variadic
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import DType, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    shapes = [context.input(index).shape for index in range(len(context.node.inputs))]
    count = total(product(shape) for shape in shapes)
    return TensorType(DType.INT64, (count,)), *(TensorType(DType.INT64, shape) for shape in shapes)


SCHEMA = OpSchema(
    op_type="UniqueRows",
    inputs=(variadic("ids", INDICES),),
    outputs=(required("rows_ids", INT64), variadic("index", INT64)),
    infer=_infer,
    attributes={
        "rows": Attribute(int, required=True),
        "readers": Attribute(tuple, required=True),
        "wraps": Attribute(tuple, required=True),
        "padded": Attribute(tuple, required=True),
        "padding_ids": Attribute(tuple, required=True),
    },
    domain=WEFT_DOMAIN,
)
