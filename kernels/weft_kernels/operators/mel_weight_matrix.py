"""Triangles between neighbouring edges that are equally far apart on the mel scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.arguments import required
from weft_kernels.casting import cast
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (0, 1, 2, 3, 4)

_MEL, _HERTZ = 2595.0, 700.0


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    bands, length, rate, lowest, highest = (array.reshape(-1)[0].item() for array in required(inputs))
    if bands < 0 or length < 0 or rate < 1 or not 0 <= lowest <= highest < math.inf:
        raise ValueError(f"{bands} bands of a spectrum of {length} at rate {rate} from {lowest} to {highest} hertz")
    low, high = (_MEL * math.log10(1 + hertz / _HERTZ) for hertz in (lowest, highest))
    # The bands' edges and centres: one more than bands on either side; the last step ends at the upper edge.
    edges = low + (high - low) / (bands + 2) * np.arange(bands + 2)
    hertz = _HERTZ * (np.power(10.0, edges / _MEL) - 1)
    places = np.floor((length + 1) * hertz / rate)
    begin, centre, end = places[:-2], places[1:-1], places[2:]
    bins = np.arange(length // 2 + 1)[:, None]
    rising = np.where(bins == centre, 1.0, (bins - begin) / np.maximum(centre - begin, 1))
    falling = (end - bins) / np.maximum(end - centre, 1)
    weights = np.where((begin <= bins) & (bins <= centre), rising, np.where((centre < bins) & (bins < end), falling, 0))
    return (cast(context.xp, context.xp.asarray(weights), DTYPE_OF_NUMBER[as_int(attributes["output_datatype"])]),)
