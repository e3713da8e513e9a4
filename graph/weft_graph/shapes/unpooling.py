"""The sizes that a pool with these windows was made of: what MaxUnpool gives."""

from __future__ import annotations

from weft_graph.attributes import as_ints
from weft_graph.shapes.windows import Get, each, kernel_of


def unpooled(size: tuple[int, ...], get: Get) -> tuple[int, ...]:
    """The spatial size before a pool whose result has `size`. Raises ValueError where the attributes do not fit."""
    rank = len(size)
    declared = get("kernel_shape")
    kernel = kernel_of(rank, None if declared is None else as_ints(declared), None)
    strides, given = each(rank, "strides", get("strides")), get("pads")
    pads = (0,) * (2 * rank) if given is None else as_ints(given)
    if len(pads) != 2 * rank or min(pads) < 0:
        raise ValueError(f"pads {pads} must be {2 * rank} numbers, none below 0")
    whole = tuple(
        (count - 1) * stride - begin - end + width
        for count, stride, begin, end, width in zip(size, strides, pads[:rank], pads[rank:], kernel, strict=True)
    )
    if min(whole) < 1:
        raise ValueError(f"windows {kernel} with pads {pads} leave nothing of {size}: {whole}")
    return whole
