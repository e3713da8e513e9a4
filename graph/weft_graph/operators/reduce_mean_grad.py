"""ReduceMeanGrad(gradient, data, axes): what each element of data has of the gradient; ReduceMean's attributes."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import OpSchema
from weft_graph.shapes.reductions import REDUCTION_ATTRIBUTES, gradient_inputs, infer_reduction_gradient

SCHEMA = OpSchema(
    op_type="ReduceMeanGrad",
    inputs=gradient_inputs(FLOATS),
    outputs=(required("data_gradient", FLOATS),),
    infer=infer_reduction_gradient,
    attributes=REDUCTION_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    shape_only=(1,),
)
