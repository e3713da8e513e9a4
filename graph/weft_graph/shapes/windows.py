"""Windows over spatial dimensions: of convolutions, transposed ones, pooling and unpooling."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from weft_graph.attributes import as_int, as_ints, as_str
from weft_graph.dimensions import (
    Dim,
    agree,
    agree_all,
    as_dim,
    is_unknown,
    minus,
    over,
    plus,
    product,
    quotient,
    unknown_of,
)
from weft_graph.ir import AttributeValue
from weft_graph.schema import Attribute, InferContext
from weft_graph.shapes.broadcasting import broadcast
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


# ----------------------------------------------------------------------------------------------------------------------
# How many windows there are over an input whose spatial size is no number before a step: a name, or not even that.


_LONG: Final = 1 << 20
"""Stands for a size that is not known while attributes are read: no window is longer than it."""


def infer_counts(context: InferContext, data: TensorType, kernel: Shape | None = None) -> Shape:
    """The number of windows along each spatial dimension of `data`. Raises ShapeError where there are none."""
    spatial = data.shape[2:]
    fixed = None if kernel is None else tuple(dim for dim in kernel if isinstance(dim, int))
    if kernel is not None and fixed != kernel:
        return tuple(context.unknown() for _ in spatial)
    if not spatial or all(isinstance(dim, int) for dim in spatial):
        return infer_windows(context, data, kernel).count
    try:
        windows = windows_of(tuple(d if isinstance(d, int) else _LONG for d in spatial), context.attribute, fixed)
    except ValueError as error:
        raise context.shape_error(f"{error}; the input is {data}") from None
    return tuple(
        windows.count[axis] if isinstance(dim, int) else _open_count(context, dim, windows, axis)
        for axis, dim in enumerate(spatial)
    )


def _open_count(context: InferContext, dim: str, windows: Windows, axis: int) -> Dim:
    stride, extent = windows.strides[axis], windows.extent[axis]
    if as_str(context.attribute("auto_pad") or "NOTSET").startswith("SAME"):
        count = over(plus(dim, stride - 1), stride)
    elif as_int(context.attribute("ceil_mode") or 0) and stride > 1:
        # A last window that would begin in the padding is left out: that follows from the size as no quotient says.
        return unknown_of("windows", dim, extent, stride, windows.begin[axis], windows.end[axis])
    else:
        count = plus(over(minus(dim, extent - windows.begin[axis] - windows.end[axis]), stride), 1)
    return context.unknown() if count is None else as_dim(count)


# --- The windows of ConvTranspose: those of a convolution from its output to its input --------------------------------


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
    begin, end, more = _transposed_pads(size, natural, strides, get)
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


def _transposed_pads(
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


# --- The sizes that a pool with these windows was made of: what MaxUnpool gives ---------------------------------------


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


# --- The shapes of matrix products and of convolutions ----------------------------------------------------------------


def infer_product(context: InferContext, left: TensorType, right: TensorType) -> Shape:
    """The shape of the product of matrices, or of stacks of them that broadcast. Raises ShapeError with both types."""
    if left.rank == 0 or right.rank == 0:
        raise context.shape_error(f"a matrix product takes no zero-dim tensor: {left} and {right}")
    inner = left.shape[-1], right.shape[-2 if right.rank > 1 else 0]
    if not agree(*inner):
        raise context.shape_error(f"inner dimensions differ: {inner[0]} of {left} and {inner[1]} of {right}")
    stack = broadcast(left.shape[:-2], right.shape[:-2])
    if stack is None:
        raise context.shape_error(f"stacks of matrices do not broadcast: {left} and {right}")
    rows = left.shape[-2:-1]
    columns = right.shape[-1:] if right.rank > 1 else ()
    return (*stack, *rows, *columns)


def infer_convolution(context: InferContext, data: TensorType, weights: TensorType, bias: TensorType | None) -> Shape:
    """The shape of a convolution of (batch, channels, spatial ...). Raises ShapeError where something does not fit."""
    group = as_int(context.attribute("group"))
    if weights.rank != data.rank or data.rank < 3:
        raise context.shape_error(f"input {data} and weights {weights} must have one rank, at least 3")
    channels, features = weights.shape[1], weights.shape[0]
    if group < 1 or (quotient((features,), (group,)) is None and not is_unknown(features)):
        raise context.shape_error(f"{features} features of weights {weights} do not fall into {group} groups")
    taken = product((channels, group))
    if not agree(data.shape[1], taken):
        raise context.shape_error(
            f"input {data} has {data.shape[1]} channels, weights {weights} in {group} groups take {taken}"
        )
    if bias is not None and not agree_all(bias.shape, (features,)):
        raise context.shape_error(f"bias {bias} must have one number for each of the {features} features")
    return (data.shape[0], features, *infer_counts(context, data, weights.shape[2:]))
