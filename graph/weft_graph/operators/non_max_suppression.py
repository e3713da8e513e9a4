"""NonMaxSuppression: (n, 3) indices of image, class and box, of boxes that overlap none with a higher score too much.

How many there are only the values of a step decide.
"""

from __future__ import annotations

from weft_graph.dimensions.dims import agree, product
from weft_graph.formals import INT64, optional, required
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import DType, TensorType

_FLOAT = frozenset({DType.FLOAT32})


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    boxes, scores = context.input(0), context.input(1)
    if boxes.rank != 3 or scores.rank != 3 or not agree(boxes.shape[2], 4):
        raise context.shape_error(f"boxes must be (batch, n, 4) and scores (batch, classes, n), got {boxes}, {scores}")
    if not agree(boxes.shape[0], scores.shape[0]) or not agree(boxes.shape[1], scores.shape[2]):
        raise context.shape_error(f"boxes {boxes} and scores {scores} differ in batch or number")
    for index in (2, 3, 4):
        type_ = context.optional_input(index)
        if type_ is not None and product(type_.shape) != 1:
            raise context.shape_error(f"input {index} must be one number, got {type_}")
    return (TensorType(DType.INT64, (context.unknown(), 3)),)


SCHEMA = OpSchema(
    op_type="NonMaxSuppression",
    inputs=(
        required("boxes", _FLOAT),
        required("scores", _FLOAT),
        optional("max_output_boxes_per_class", INT64),
        optional("iou_threshold", _FLOAT),
        optional("score_threshold", _FLOAT),
    ),
    outputs=(required("selected_indices", INT64),),
    infer=_infer,
    attributes={"center_point_box": Attribute(int, default=0)},
)
