"""ReduceMean: the mean over `axes`, an input or an attribute; over all of them where there are none."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INT64, optional, required
from weft_graph.schema import OpSchema
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.reductions import REDUCTION_ATTRIBUTES, infer_reduction, reduction_gradient

_DTYPES = FLOATS

SCHEMA = OpSchema(
    op_type="ReduceMean",
    inputs=(required("data", _DTYPES), optional("axes", INT64)),
    outputs=(required("reduced", _DTYPES),),
    infer=infer_reduction,
    gradient=reduction_gradient,
    attributes=REDUCTION_ATTRIBUTES,
    flops=reduced,
)
