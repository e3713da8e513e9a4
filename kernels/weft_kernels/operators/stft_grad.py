"""Each frame's gradient, times the window and added up in the signal; times the frame and added up in the window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.signals.fourier import Transform
from weft_kernels.signals.frames import added_up, cut, frame_sizes

HOST_INPUTS = (2, 4)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    gradient, signal, step = required(inputs, 3)
    window, dtype = optional(inputs, 3), statistics_dtype(xp, signal)
    every, size, _ = frame_sizes(signal, step, window, optional(inputs, 4))
    frames = cut(xp, signal.astype(dtype, copy=False), every, size)
    transform = Transform(size, is_inverse=False, is_onesided=bool(as_int(attributes["onesided"])))
    back = transform.transposed(xp, gradient.astype(dtype, copy=False), frames.shape)
    weighed = back if window is None else back * window.astype(dtype, copy=False)[:, None]
    result = added_up(xp, weighed, every, signal.shape[1]).astype(signal.dtype, copy=False)
    if window is None or not context.asks(1):
        return (result,)
    return result, (back * frames).sum(axis=(0, 1, 3)).astype(window.dtype, copy=False)
