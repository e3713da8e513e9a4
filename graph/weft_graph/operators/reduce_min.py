"""ReduceMin: the smallest element over `axes` (an input or an attribute), or over all.

Of no elements it is the type's highest value. Equals share the gradient.
"""

from __future__ import annotations

from weft_graph.formals import BOOLEANS, INT64, NUMBERS, optional, required
from weft_graph.schema import OpSchema
from weft_graph.shapes.extremes import reduced_to_equals
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.reductions import REDUCTION_ATTRIBUTES, infer_reduction

_DTYPES = NUMBERS | BOOLEANS

SCHEMA = OpSchema(
    op_type="ReduceMin",
    inputs=(required("data", _DTYPES), optional("axes", INT64)),
    outputs=(required("reduced", _DTYPES),),
    infer=infer_reduction,
    gradient=reduced_to_equals,
    attributes=REDUCTION_ATTRIBUTES,
    flops=reduced,
)
