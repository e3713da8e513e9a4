"""The middle of the data, in the middle of zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_ints
from weft_graph.ir import AttributeValue
from weft_graph.shapes.resizing import check_length, resized_axes
from weft_kernels.arguments import required
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (1,)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    data, target = required(inputs)
    given = attributes.get("axes")
    axes = resized_axes(data.ndim, None if given is None else as_ints(given))
    lengths = [int(length) for length in target.reshape(-1).tolist()]
    check_length("shape", lengths, axes)
    if min(lengths, default=0) < 0:
        raise ValueError(f"shape {lengths} has a dimension below 0")
    shape = list(data.shape)
    read, written = [slice(None)] * data.ndim, [slice(None)] * data.ndim
    for axis, length in zip(axes, lengths, strict=True):
        read[axis], written[axis] = _middle(data.shape[axis], length), _middle(length, data.shape[axis])
        shape[axis] = length
    if all(new <= old for new, old in zip(shape, data.shape, strict=True)):
        return (data[tuple(read)],)
    result = context.xp.zeros(tuple(shape), dtype=data.dtype)
    result[tuple(written)] = data[tuple(read)]
    return (result,)


def _middle(whole: int, part: int) -> slice:
    """The middle `part` of `whole` elements, the odd one after it; all where there are no more."""
    begin = max(whole - part, 0) // 2
    return slice(begin, begin + min(whole, part))
