"""The transform of each frame times the window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.signals.fourier import Transform
from weft_kernels.signals.frames import cut, frame_sizes

HOST_INPUTS = (1, 3)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    xp = context.xp
    signal, step = required(inputs, 2)
    window = optional(inputs, 2)
    every, size, _ = frame_sizes(signal, step, window, optional(inputs, 3))
    frames = cut(xp, signal.astype(statistics_dtype(xp, signal), copy=False), every, size)
    if window is not None:
        frames = frames * window.astype(frames.dtype, copy=False)[:, None]
    transform = Transform(size, is_inverse=False, is_onesided=bool(as_int(attributes["onesided"])))
    return (transform(xp, frames).astype(signal.dtype, copy=False),)
