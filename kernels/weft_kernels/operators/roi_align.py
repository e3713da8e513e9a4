"""Each bin the mean of its points, or the largest of all weighed elements around them, as ONNX's own cases have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.sampling.boxes import box_points, largest
from weft_kernels.sampling.taps import rows_of, sampled

HOST_INPUTS = (1, 2)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    data, rois, images = required(inputs)
    rows = rows_of(xp, data, statistics_dtype(xp, data))
    bins = (as_int(attributes["output_height"]), as_int(attributes["output_width"]))
    result = xp.zeros((len(rois), bins[0] * bins[1], data.shape[1]), dtype=rows.dtype)
    for group in box_points(rois, images, data.shape, attributes):
        if group.shape[2] == 0:
            continue
        if attributes["mode"] == "max":
            bins_of_group = largest(xp, rows, group)
        else:
            bins_of_group = sampled(xp, rows, group.taps(xp)).reshape(*group.shape, -1).mean(axis=2)
        result[xp.asarray(group.boxes)] = bins_of_group
    return (result.reshape(len(rois), *bins, data.shape[1]).transpose(0, 3, 1, 2).astype(data.dtype, copy=False),)
