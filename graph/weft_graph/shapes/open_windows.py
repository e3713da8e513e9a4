"""How many windows there are over an input whose spatial size is no number before a step: a name, or not even that."""

from __future__ import annotations

from typing import Final

from weft_graph.attributes import as_int, as_str
from weft_graph.dimensions.amounts import as_dim, minus, over, plus
from weft_graph.dimensions.dims import Dim, unknown_of
from weft_graph.schema import InferContext
from weft_graph.shapes.windows import Windows, infer_windows, windows_of
from weft_graph.types import Shape, TensorType

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
