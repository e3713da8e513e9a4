"""Lengths of signals and of their Fourier transforms; a transform of whole numbers of samples has bins."""

from __future__ import annotations

from weft_graph.dimensions.dims import Dim, unknown_of


def bins_of(length: Dim) -> Dim:
    """Bins of a one-sided transform of so many real samples: the others mirror them."""
    return length // 2 + 1 if isinstance(length, int) else unknown_of("bins", length)


def samples_of(bins: Dim) -> Dim:
    """Samples that one-sided bins are the transform of, where nothing else says so."""
    if isinstance(bins, int):
        return max(2 * (bins - 1), 0)
    return unknown_of("samples", bins)


def frames_of(signal: Dim, frame: Dim, step: Dim) -> Dim:
    """Whole frames in a signal. Raises ValueError where not one fits."""
    if not (isinstance(signal, int) and isinstance(frame, int) and isinstance(step, int)):
        return unknown_of("frames", signal, frame, step)
    if step < 1 or frame < 1 or frame > signal:
        raise ValueError(f"frames of {frame} samples, one every {step}, do not fit a signal of {signal}")
    return (signal - frame) // step + 1
