"""BitShift: the bits of X moved by Y places to the side of `direction`, element by element, broadcast.

To the right a signed number keeps its sign. Where Y is below 0 or at least the number of bits, nothing but the sign is
left: -1 for a number below 0 that moves to the right, else 0.
"""

from __future__ import annotations

from weft_graph.formals import INTEGERS, required
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.broadcasting import infer_binary
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    if context.attribute("direction") not in {"LEFT", "RIGHT"}:
        raise context.shape_error(f"direction {context.attribute('direction')!r} is none of LEFT, RIGHT")
    return infer_binary(context)


SCHEMA = OpSchema(
    op_type="BitShift",
    inputs=(required("X", INTEGERS), required("Y", INTEGERS)),
    outputs=(required("Z", INTEGERS),),
    infer=_infer,
    attributes={"direction": Attribute(str, required=True)},
    pointwise=True,
)
