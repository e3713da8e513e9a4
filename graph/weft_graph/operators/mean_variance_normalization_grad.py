"""MeanVarianceNormalizationGrad(gradient, X): the gradient of X; 0 where nothing varies."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.mean_variance_normalization import ATTRIBUTES
from weft_graph.schema import OpSchema
from weft_graph.shapes.broadcasting import infer_unary

SCHEMA = OpSchema(
    op_type="MeanVarianceNormalizationGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS)),
    outputs=(required("X_gradient", FLOATS),),
    infer=infer_unary,
    attributes=ATTRIBUTES,
    domain=WEFT_DOMAIN,
)
