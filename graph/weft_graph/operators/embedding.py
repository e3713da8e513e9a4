"""Embedding(table, ids; padding_id): the rows of `table` that `ids` name, and rows of zeros for the id `padding_id`.

Ids are row numbers from 0, and `padding_id` may be any number besides: it is compared with the ids as they are, and a
row of that number neither is read nor has a gradient. ONNX has no word for it; Gather has no padding.
"""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import FLOATS, INDICES, required
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.gathering import check_known_indices, gathering_gradient, infer_gathered
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    table, padding = context.input(0), context.attribute("padding_id")
    if table.rank == 0:
        raise context.shape_error("a table has rows, and a zero-dim tensor has none")
    check_known_indices(context, 0, low=0, allowed=None if padding is None else as_int(padding))
    return (infer_gathered(context, 0),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    padding = context.attribute("padding_id")
    attributes: dict[str, AttributeValue] = {"axis": 0}
    if padding is not None:
        attributes["padding_id"] = padding
    return gathering_gradient(context, attributes, wraps=False)


SCHEMA = OpSchema(
    op_type="Embedding",
    inputs=(required("table", FLOATS), required("ids", INDICES)),
    outputs=(required("rows", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes={"padding_id": Attribute(int)},
    domain=WEFT_DOMAIN,
)
