"""TopK: the k largest or smallest elements along an axis, and where they are; of equals the first come first.

They are sorted also where `sorted` does not ask for it.
"""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.dimensions.dims import agree, product
from weft_graph.formals import INT64, NUMBERS, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import infer_axis
from weft_graph.shapes.flow import incoming
from weft_graph.types import DType, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, count = context.input(0), context.input(1)
    axis = infer_axis(context, data.rank)
    if count.rank > 1 or not agree(product(count.shape), 1):
        raise context.shape_error(f"K {count} must be one number")
    numbers, dim = context.dims(1), data.shape[axis]
    k = context.unknown(dim) if not numbers else numbers[0]
    if isinstance(k, int) and (k < 0 or (isinstance(dim, int) and k > dim)):
        raise context.shape_error(f"K is {k}, and dimension {axis} of {data} has {dim} elements")
    shape = (*data.shape[:axis], k, *data.shape[axis + 1 :])
    return TensorType(data.dtype, shape), TensorType(DType.INT64, shape)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(0), context.output(1))
    attributes = {"axis": as_int(context.attribute("axis"))}
    return context.emit("GatherElementsGrad", inputs, attributes, domain=WEFT_DOMAIN)[0], None


SCHEMA = OpSchema(
    op_type="TopK",
    inputs=(required("X", NUMBERS), required("K", INT64)),
    outputs=(required("Values", NUMBERS), optional("Indices", INT64)),
    infer=_infer,
    gradient=_gradient,
    attributes={
        "axis": Attribute(int, default=-1),
        "largest": Attribute(int, default=1),
        "sorted": Attribute(int, default=1),
    },
)
