"""The first class whose share, added to those before it, is above a draw of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.node_draws import node_key, samples_before, seed_of, uniform
from weft_kernels.softmax import softmax


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs)
    dtype, count = DTYPE_OF_NUMBER[as_int(attributes["dtype"])].numpy, as_int(attributes["sample_size"])
    rows, classes = data.shape
    start = samples_before(context, data.shape, rows * count)
    unit = xp.asarray(uniform(node_key(context, seed_of(attributes)), start, rows * count).reshape(rows, count))
    upto = xp.cumsum(softmax(xp, data.astype(xp.float64), axis=1), axis=1)
    # Row r's shares lie between r and r + 1, so that all rows are one sorted list.
    offset = xp.arange(rows, dtype=xp.float64)[:, None]
    shares = upto / upto[:, -1:] + offset
    place = xp.searchsorted(shares.reshape(-1), (unit + offset).reshape(-1), side="right").reshape(rows, count)
    first = xp.arange(rows)[:, None] * classes
    return (xp.minimum(place - first, classes - 1).astype(dtype),)
