"""MelWeightMatrix: what each bin of a spectrum has of each band on the mel scale, (bins, bands): triangles of height 1.

A frequency of f hertz is 2595 * log10(1 + f / 700) mel.
"""

from __future__ import annotations

from weft_graph.formals import FLOATS, INDICES, NUMBERS, required
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.flops import moved
from weft_graph.shapes.spectral import OUTPUT_DATATYPE, one_number, output_dtype
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    for index, name in ((2, "sample_rate"), (3, "lower_edge_hertz"), (4, "upper_edge_hertz")):
        one_number(context, index, name)
    bands, length = one_number(context, 0, "num_mel_bins"), one_number(context, 1, "dft_length")
    bins = context.unknown() if length is None else length // 2 + 1
    return (TensorType(output_dtype(context), (bins, context.unknown() if bands is None else bands)),)


SCHEMA = OpSchema(
    op_type="MelWeightMatrix",
    inputs=(
        required("num_mel_bins", INDICES),
        required("dft_length", INDICES),
        required("sample_rate", INDICES),
        required("lower_edge_hertz", FLOATS),
        required("upper_edge_hertz", FLOATS),
    ),
    outputs=(required("output", NUMBERS),),
    infer=_infer,
    attributes=OUTPUT_DATATYPE,
    flops=moved,
)
