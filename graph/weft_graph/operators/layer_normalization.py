"""LayerNormalization: each sample's elements from `axis` on of mean 0 and variance 1, then scaled and shifted.

Statistics are computed in float32 at least, and given in `stash_type`, or in float64 for an input of that type.
"""

from __future__ import annotations

from weft_graph.attributes import as_float
from weft_graph.formals import FLOATS, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import infer_axis
from weft_graph.shapes.broadcasting import broadcasts_to, check_same_dtype, sum_to
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flops import normalized
from weft_graph.shapes.flow import incoming, refusal
from weft_graph.shapes.stash import check_epsilon, stash_dtype
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, bias = context.input(0), context.optional_input(2)
    check_same_dtype(context, *range(2 if bias is None else 3))
    axis = infer_axis(context, data.rank)
    for type_ in (context.input(1), *(() if bias is None else (bias,))):
        if type_.rank > data.rank - axis or not broadcasts_to(type_.shape, data.shape):
            raise context.shape_error(f"{type_} does not broadcast to the dimensions of {data} from {axis} on")
    check_epsilon(context, as_float(context.attribute("epsilon")))
    statistics = TensorType(stash_dtype(context), (*data.shape[:axis], *(1,) * (data.rank - axis)))
    return data, statistics, statistics


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    if context.gradient(1) is not None or context.gradient(2) is not None:
        raise refusal(context, "the statistics have no gradient")
    gradient = incoming(context)
    inputs = (gradient, context.input(0), context.input(1), context.output(1), context.output(2))
    attributes = given_attributes(context, ("axis", "epsilon"))
    gradients: list[str | None] = list(
        context.emit("LayerNormalizationGrad", inputs, attributes, domain=WEFT_DOMAIN, outputs=2)
    )
    if len(context.node.inputs) > 2:
        gradients.append(sum_to(context, gradient, context.input(2)) if context.needs(2) else None)
    return tuple(gradients)


SCHEMA = OpSchema(
    op_type="LayerNormalization",
    inputs=(required("X", FLOATS), required("Scale", FLOATS), optional("B", FLOATS)),
    outputs=(required("Y", FLOATS), optional("Mean", FLOATS), optional("InvStdDev", FLOATS)),
    infer=_infer,
    gradient=_gradient,
    attributes={
        "axis": Attribute(int, default=-1),
        "epsilon": Attribute(float, default=1e-5),
        "stash_type": Attribute(int, default=1),
    },
    flops=normalized,
    in_place=(0,),
)
