"""BlackmanWindow: 0.42 - 0.5 cos(2 pi n / N) + 0.08 cos(4 pi n / N) for n below `size`."""

from __future__ import annotations

from weft_graph.formals import INDICES, NUMBERS, required
from weft_graph.schema import OpSchema
from weft_graph.shapes.flops import moved
from weft_graph.shapes.spectral import WINDOW_ATTRIBUTES, infer_window

SCHEMA = OpSchema(
    op_type="BlackmanWindow",
    inputs=(required("size", INDICES),),
    outputs=(required("output", NUMBERS),),
    infer=infer_window,
    attributes=WINDOW_ATTRIBUTES,
    flops=moved,
)
