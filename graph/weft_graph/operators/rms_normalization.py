"""RMSNormalization: each sample's elements from `axis` on over the root of their mean square, then scaled.

Computed in float32 at least. The output is of the scale's element type. Zhang and Sennrich 2019.
"""

from __future__ import annotations

from weft_graph.attributes import as_float
from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import infer_axis
from weft_graph.shapes.broadcasting import broadcasts_to
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flops import normalized
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.stash import check_epsilon, stash_dtype
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, scale = context.input(0), context.input(1)
    axis = infer_axis(context, data.rank)
    if scale.rank > data.rank - axis or not broadcasts_to(scale.shape, data.shape):
        raise context.shape_error(f"{scale} does not broadcast to the dimensions of {data} from {axis} on")
    check_epsilon(context, as_float(context.attribute("epsilon")))
    stash_dtype(context)
    return (TensorType(scale.dtype, data.shape),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(0), context.input(1))
    attributes = given_attributes(context, ("axis", "epsilon"))
    return context.emit("RMSNormalizationGrad", inputs, attributes, domain=WEFT_DOMAIN, outputs=2)


SCHEMA = OpSchema(
    op_type="RMSNormalization",
    inputs=(required("X", FLOATS), required("scale", FLOATS)),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes={
        "axis": Attribute(int, default=-1),
        "epsilon": Attribute(float, default=1e-5),
        "stash_type": Attribute(int, default=1),
    },
    flops=normalized,
)
