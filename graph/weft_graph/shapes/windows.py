"""The windows that Conv and the pools slide over an input: ONNX's strides, dilations, pads, auto_pad and ceil_mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from weft_graph.attributes import as_int, as_ints, as_str
from weft_graph.ir import AttributeValue
from weft_graph.schema import Attribute, InferContext
from weft_graph.types import Shape, TensorType

Get = Callable[[str], AttributeValue | None]
"""An attribute by its name: a context's `attribute`, or the `get` of a mapping."""

PADDED_ELEMENTS: Final = 1 << 20
PADDED_GROWTH: Final = 64
"""A padded input has at most the first many elements a channel, or the second as many times the input's own: kernels
make it whole, and pads or dilations are a few bytes that could ask for any amount of memory."""

WINDOW_ATTRIBUTES = {
    "auto_pad": Attribute(str, default="NOTSET"),
    "dilations": Attribute(tuple),
    "kernel_shape": Attribute(tuple),
    "pads": Attribute(tuple),
    "strides": Attribute(tuple),
}


@dataclass(frozen=True, slots=True)
class Windows:
    """For each spatial dimension: size of the input, of the kernel, and how many windows there are (`count`).

    Window i covers the inputs `i * stride - begin + j * dilation` for j below the kernel's size; `begin` and `end`
    are the paddings that were asked for. With ceil_mode the last window may reach beyond `end`.
    """

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    count: tuple[int, ...]

    @property
    def extent(self) -> tuple[int, ...]:
        """Elements from a window's first to its last, both included."""
        return tuple((size - 1) * step + 1 for size, step in zip(self.kernel, self.dilations, strict=True))

    @property
    def reach(self) -> tuple[int, ...]:
        """Elements after the input's end that must exist for every window to be whole: `end`, or more."""
        return tuple(
            max(end, (count - 1) * stride + extent - begin - size)
            for size, extent, stride, begin, end, count in zip(
                self.size, self.extent, self.strides, self.begin, self.end, self.count, strict=True
            )
        )


def infer_windows(context: InferContext, data: TensorType, kernel: Shape | None = None) -> Windows:
    """The windows over the input `data`. Raises ShapeError, which names the node, where there are none."""
    spatial = data.shape[2:]
    if not spatial:
        raise context.shape_error(f"the input must be (batch, channels, spatial ...), got {data}")
    sizes = tuple(dim for dim in spatial if isinstance(dim, int))
    if sizes != spatial:
        raise context.shape_error(f"spatial dimensions must be numbers, got {data}")
    fixed = None if kernel is None else tuple(dim for dim in kernel if isinstance(dim, int))
    if fixed is not None and fixed != kernel:
        raise context.shape_error(f"the kernel's spatial dimensions must be numbers, got {kernel}")
    try:
        windows = windows_of(sizes, context.attribute, fixed)
    except ValueError as error:
        raise context.shape_error(f"{error}; the input is {data}") from None
    padded = math.prod(sum(dims) for dims in zip(windows.size, windows.begin, windows.reach, strict=True))
    if padded > max(PADDED_ELEMENTS, PADDED_GROWTH * math.prod(sizes)):
        raise context.shape_error(
            f"pads {windows.begin + windows.reach} make {padded} elements a channel of {math.prod(sizes)}; at most "
            f"{PADDED_GROWTH} times as many, or {PADDED_ELEMENTS}; the input is {data}"
        )
    # A pool's window that lies in the padding alone has no largest element and no mean; a convolution's is 0.
    pads = windows.begin + windows.end
    if kernel is None and any(pad >= extent for pad, extent in zip(pads, windows.extent * 2, strict=True)):
        raise context.shape_error(
            f"pads {pads} leave a window of {windows.extent} without an element; the input is {data}"
        )
    return windows


def windows_of(size: tuple[int, ...], get: Get, kernel: tuple[int, ...] | None = None) -> Windows:
    """The windows over an input of that spatial size; `kernel` is the weights', where there are some.

    Raises ValueError, with both sides, where attributes do not fit the size.
    """
    rank = len(size)
    declared = get("kernel_shape")
    kernel = kernel_of(rank, None if declared is None else as_ints(declared), kernel)
    strides = each(rank, "strides", get("strides"))
    dilations = each(rank, "dilations", get("dilations"))
    extent = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    begin, end = _pads(size, extent, strides, get)
    ceil_mode = bool(as_int(get("ceil_mode") or 0))
    count = []
    for axis in range(rank):
        room = size[axis] + begin[axis] + end[axis] - extent[axis]
        if room < 0:
            raise ValueError(
                f"a window of {extent[axis]} does not fit {size[axis]} elements padded by {begin[axis]} and "
                f"{end[axis]} along spatial dimension {axis}"
            )
        steps = -(-room // strides[axis]) if ceil_mode else room // strides[axis]
        if ceil_mode and steps * strides[axis] >= size[axis] + begin[axis]:
            steps -= 1  # a window that would begin in the padding after the input is left out
        count.append(steps + 1)
    return Windows(size, kernel, strides, dilations, begin, end, tuple(count))


def kernel_of(rank: int, declared: tuple[int, ...] | None, weights: tuple[int, ...] | None) -> tuple[int, ...]:
    """The kernel's spatial size, by `kernel_shape` or the weights. Raises ValueError where they differ."""
    kernel = declared if weights is None else weights
    if kernel is None:
        raise ValueError("kernel_shape is missing")
    if declared is not None and declared != kernel:
        raise ValueError(f"kernel_shape {declared} differs from the weights' {weights}")
    if len(kernel) != rank:
        raise ValueError(f"the kernel {kernel} has {len(kernel)} dimensions for {rank} spatial ones")
    if min(kernel) < 1:
        raise ValueError(f"the kernel {kernel} has a dimension below 1")
    return kernel


def each(rank: int, name: str, value: AttributeValue | None) -> tuple[int, ...]:
    """A number for each spatial dimension, 1 where left out. Raises ValueError where one is below 1."""
    numbers = (1,) * rank if value is None else as_ints(value)
    if len(numbers) != rank or min(numbers) < 1:
        raise ValueError(f"{name} {numbers} must be {rank} numbers, each at least 1")
    return numbers


def _pads(
    size: tuple[int, ...], extent: tuple[int, ...], strides: tuple[int, ...], get: Get
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rank = len(size)
    mode = as_str(get("auto_pad") or "NOTSET")
    if mode == "VALID":
        return (0,) * rank, (0,) * rank
    if mode in {"SAME_UPPER", "SAME_LOWER"}:
        # As many windows as strides fit the input, rounded up; the odd element goes after it, or before it for LOWER.
        totals = [
            max((-(-length // stride) - 1) * stride + reach - length, 0)
            for length, stride, reach in zip(size, strides, extent, strict=True)
        ]
        less, more = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
        return (less, more) if mode == "SAME_UPPER" else (more, less)
    if mode != "NOTSET":
        raise ValueError(f"auto_pad {mode!r} is none of NOTSET, SAME_UPPER, SAME_LOWER, VALID")
    given = get("pads")
    pads = (0,) * (2 * rank) if given is None else as_ints(given)
    if len(pads) != 2 * rank or min(pads) < 0:
        raise ValueError(f"pads {pads} must be {2 * rank} numbers, none below 0")
    return pads[:rank], pads[rank:]
