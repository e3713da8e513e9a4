"""What ArgMax and ArgMin have in common: their attributes, and the type of the places that they find."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.schema import Attribute, Infer, InferContext
from weft_graph.shapes.axes import infer_axis
from weft_graph.types import DType, TensorType

PLACE_ATTRIBUTES = {
    "axis": Attribute(int, default=0),
    "keepdims": Attribute(int, default=1),
    "select_last_index": Attribute(int, default=0),
}


def infer_place(what: str) -> Infer:
    """Inference of the places of elements along `axis`; `what` is what an empty dimension has none of."""

    def infer(context: InferContext) -> tuple[TensorType, ...]:
        data = context.input(0)
        axis = infer_axis(context, data.rank)
        if data.shape[axis] == 0:
            raise context.shape_error(f"dimension {axis} of {data} is empty and has no {what}")
        kept = (1,) if as_int(context.attribute("keepdims")) else ()
        return (TensorType(DType.INT64, (*data.shape[:axis], *kept, *data.shape[axis + 1 :])),)

    return infer
