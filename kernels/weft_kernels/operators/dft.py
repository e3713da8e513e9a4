"""The transform along one axis, which is the last but one for as long as it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_graph.shapes.axes import normalised
from weft_graph.shapes.spectra import samples_of
from weft_kernels.arguments import optional, required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.signals.fourier import Transform

HOST_INPUTS = (1, 2)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    (data,) = required(inputs, 1)
    axis, transform = transform_of(data, optional(inputs, 1), optional(inputs, 2), attributes)
    wide = xp.moveaxis(data.astype(statistics_dtype(xp, data), copy=False), axis, -2)
    return (xp.moveaxis(transform(xp, wide), -2, axis).astype(data.dtype, copy=False),)


def transform_of(
    data: Array, length: Array | None, axis: Array | None, attributes: Mapping[str, AttributeValue]
) -> tuple[int, Transform]:
    """(the axis counted from the front, what is done along it). Raises ValueError for a bad axis or length."""
    along = normalised(-2 if axis is None else int(axis.reshape(-1)[0].item()), data.ndim)
    is_inverse, is_onesided = bool(as_int(attributes["inverse"])), bool(as_int(attributes["onesided"]))
    if length is not None:
        count = int(length.reshape(-1)[0].item())
    else:
        natural = data.shape[along]
        count = int(samples_of(natural)) if is_inverse and is_onesided else natural
    if count < 1 or along == data.ndim - 1:
        raise ValueError(f"a transform of {count} samples along axis {along} of {data.shape}")
    return along, Transform(count, is_inverse, is_onesided)
