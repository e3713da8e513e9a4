"""ReduceMean: the mean over `axes`, an input or an attribute; over all of them where there are none."""

from __future__ import annotations

from weft_graph.formals import INT64, SUMMABLE, optional, required
from weft_graph.schema import OpSchema
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.reductions import REDUCTION_ATTRIBUTES, infer_reduction, reduction_gradient

SCHEMA = OpSchema(
    op_type="ReduceMean",
    inputs=(required("data", SUMMABLE), optional("axes", INT64)),
    outputs=(required("reduced", SUMMABLE),),
    infer=infer_reduction,
    gradient=reduction_gradient,
    attributes=REDUCTION_ATTRIBUTES,
    flops=reduced,
)
