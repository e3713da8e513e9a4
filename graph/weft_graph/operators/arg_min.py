"""ArgMin: the index of the smallest element along `axis`; the first of equals, or the last."""

from __future__ import annotations

from weft_graph.formals import INT64, NUMBERS, required
from weft_graph.schema import OpSchema
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.places import PLACE_ATTRIBUTES, infer_place

SCHEMA = OpSchema(
    op_type="ArgMin",
    inputs=(required("data", NUMBERS),),
    outputs=(required("reduced", INT64),),
    infer=infer_place("smallest element"),
    attributes=PLACE_ATTRIBUTES,
    flops=reduced,
)
