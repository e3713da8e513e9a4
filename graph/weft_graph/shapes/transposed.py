"""The windows of ConvTranspose: those of a convolution from its output to its input."""

from __future__ import annotations

import math

from weft_graph.attributes import as_ints, as_str
from weft_graph.shapes.windows import PADDED_ELEMENTS, PADDED_GROWTH, Get, Windows, each, kernel_of


def transposed_windows(size: tuple[int, ...], get: Get, weights: tuple[int, ...]) -> Windows:
    """The windows over the output, one for each place of an input of spatial size `size`.

    A convolution with the same strides and dilations and with pads `begin` and `end` leads from the output back to the
    input's size. Raises ValueError, with both sides, where attributes do not fit.
    """
    rank = len(size)
    declared = get("kernel_shape")
    kernel = kernel_of(rank, None if declared is None else as_ints(declared), weights)
    strides, dilations = each(rank, "strides", get("strides")), each(rank, "dilations", get("dilations"))
    extra = _numbers(get, "output_padding", rank) or (0,) * rank
    natural = tuple(
        stride * (count - 1) + more + (width - 1) * dilation + 1
        for stride, count, more, width, dilation in zip(strides, size, extra, kernel, dilations, strict=True)
    )
    begin, end, more = _pads(size, natural, strides, get)
    extra = tuple(given + added for given, added in zip(extra, more, strict=True))
    if any(added >= stride for added, stride in zip(extra, strides, strict=True)):
        raise ValueError(f"output_padding {extra} must be below the strides {strides}")
    whole = tuple(length + added for length, added in zip(natural, more, strict=True))
    result = tuple(length - low - high for length, low, high in zip(whole, begin, end, strict=True))
    if min(size) < 1 or min(result) < 1:
        raise ValueError(f"an input of {size} padded by {begin} and {end} gives no output: {result}")
    if math.prod(whole) > max(PADDED_ELEMENTS, PADDED_GROWTH * math.prod(size) * math.prod(strides)):
        raise ValueError(f"the output before pads are taken away has {math.prod(whole)} elements a channel: too many")
    return Windows(result, kernel, strides, dilations, begin, end, size)


def _pads(
    size: tuple[int, ...], natural: tuple[int, ...], strides: tuple[int, ...], get: Get
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(taken away before, taken away after, added after), from `pads` or from the output's shape that is asked for."""
    rank, mode = len(size), as_str(get("auto_pad") or "NOTSET")
    if mode not in {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}:
        raise ValueError(f"auto_pad {mode!r} is none of NOTSET, SAME_UPPER, SAME_LOWER, VALID")
    asked = _numbers(get, "output_shape", rank)
    if asked is None and mode.startswith("SAME"):
        asked = tuple(count * stride for count, stride in zip(size, strides, strict=True))
    if asked is None:
        pads = None if mode == "VALID" else _numbers(get, "pads", 2 * rank)
        pads = pads or (0,) * (2 * rank)
        return pads[:rank], pads[rank:], (0,) * rank
    totals = [max(length - wanted, 0) for length, wanted in zip(natural, asked, strict=True)]
    less, most = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    more = tuple(max(wanted - length, 0) for length, wanted in zip(natural, asked, strict=True))
    return (less, most, more) if mode == "SAME_UPPER" else (most, less, more)


def _numbers(get: Get, name: str, count: int) -> tuple[int, ...] | None:
    given = get(name)
    if given is None:
        return None
    numbers = as_ints(given)
    if len(numbers) != count or min(numbers, default=0) < 0:
        raise ValueError(f"{name} {numbers} must be {count} numbers, none below 0")
    return numbers
