"""A signal cut into frames that may overlap, and frames added up where they lie in a signal."""

from __future__ import annotations

from typing import Any

from weft_graph.operators.signals import frames_of
from weft_kernels.kernel import Array


def frame_sizes(signal: Array, step: Array, window: Array | None, length: Array | None) -> tuple[int, int, int]:
    """(step, samples of a frame, frames). Raises ValueError where they do not fit the signal (batch, samples, ...)."""
    size = signal.shape[1]
    if length is not None:
        size = int(length.reshape(-1)[0].item())
    if window is not None:
        if length is not None and len(window) != size:
            raise ValueError(f"a window of {len(window)} numbers for frames of {size} samples")
        size = len(window)
    every = int(step.reshape(-1)[0].item())
    return every, size, int(frames_of(signal.shape[1], size, every))


def cut(xp: Any, signal: Array, step: int, size: int) -> Array:
    """(batch, frames, samples of a frame, parts); a view."""
    view = xp.lib.stride_tricks.sliding_window_view(signal, size, axis=1)[:, ::step]
    return view.swapaxes(2, 3)  # type: ignore[no-any-return]  # xp is Any


def added_up(xp: Any, frames: Array, step: int, samples: int) -> Array:
    """(batch, samples, parts): the reverse of `cut`. One addition for each frame, or for each sample of a frame."""
    batch, count, size, parts = frames.shape
    result: Array = xp.zeros((batch, samples, parts), dtype=frames.dtype)
    if count <= size:
        for frame in range(count):
            result[:, frame * step : frame * step + size] += frames[:, frame]
    else:
        for at in range(size):
            result[:, at : at + (count - 1) * step + 1 : step] += frames[:, :, at]
    return result
