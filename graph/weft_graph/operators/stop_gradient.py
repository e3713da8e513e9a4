"""StopGradient: Y = X, a constant as far as gradients are concerned: nothing flows back through it.

ONNX has no word for it; what is exported has Identity in its place.
"""

from __future__ import annotations

from weft_graph.formals import ANY, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.flow import flat

SCHEMA = OpSchema(
    op_type="StopGradient",
    inputs=(required("X", ANY),),
    outputs=(required("Y", ANY),),
    infer=infer_unary,
    gradient=flat,
    domain=WEFT_DOMAIN,
    pointwise=True,
    views=True,
)
