"""Fourier transforms and the windows of signals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.operators.signals import bins_of, frames_of, samples_of
from weft_graph.shapes.broadcasting import normalised
from weft_kernels.arguments import optional, required
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.operators.types import cast

# --- Windows that are sums of cosines: Harris, "On the use of windows for harmonic analysis", 1978 --------------------


def cosine_window(
    context: KernelContext,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, AttributeValue],
    coefficients: Sequence[float],
) -> Array:
    """The sum of coefficients[k] * cos(2 pi k n / N) for n below `size`; N is the size, or less by 1 if not periodic.

    Computed in float64 and rounded once. A window of one element is 1. Raises ValueError for a size below 0.
    """
    (given,) = required(inputs)
    size = int(given.reshape(-1)[0])
    if size < 0:
        raise ValueError(f"size {size} is below 0")
    period = max(size if as_int(attributes["periodic"]) else size - 1, 1)
    angles = 2 * math.pi / period * np.arange(size)
    window = sum((factor * np.cos(k * angles) for k, factor in enumerate(coefficients)), start=np.zeros(size))
    made = np.ones(1) if size == 1 else window
    return cast(context.xp, context.xp.asarray(made), DTYPE_OF_NUMBER[as_int(attributes["output_datatype"])])


# --- Fourier transforms of pairs (real, imaginary) along the last but one dimension, and their transposes -------------


@dataclass(frozen=True, slots=True)
class Transform:
    """A transform of `length` samples. One-sided, it is of real samples: forward it gives, inverse it takes the bins
    of `weft_graph.operators.signals.bins_of`, which the others mirror."""

    length: int
    is_inverse: bool
    is_onesided: bool

    @property
    def taken(self) -> int:
        """Elements that are read: fewer are filled up with zeros, more are cut off."""
        return _bins(self.length) if self.is_inverse and self.is_onesided else self.length

    def __call__(self, xp: Any, pairs: Array) -> Array:
        """The transform of (..., elements, 1 or 2); (..., bins, 2), or (..., samples, 1) of one-sided bins."""
        data = fitted(xp, pairs, self.taken)
        if self.is_onesided and not self.is_inverse:
            return split(xp, xp.fft.rfft(data[..., 0], axis=-1))
        values = joined(xp, data)
        if not self.is_inverse:
            return split(xp, xp.fft.fft(values, axis=-1))
        if not self.is_onesided:
            return split(xp, xp.fft.ifft(values, axis=-1))
        return xp.fft.irfft(values, n=self.length, axis=-1)[..., None]  # type: ignore[no-any-return]  # xp is Any

    def transposed(self, xp: Any, gradient: Array, shape: tuple[int, ...]) -> Array:
        """The gradient of what the transform took, of that shape, from that of its result."""
        if self.is_onesided and self.is_inverse:
            pairs = split(xp, xp.fft.rfft(gradient[..., 0], axis=-1)) * self._counted(xp, gradient.dtype)
        elif self.is_inverse:
            pairs = split(xp, xp.fft.fft(joined(xp, gradient), axis=-1)) / self.length
        else:
            # Bins that were left out have no gradient; the conjugate transform of the others leads back.
            whole = joined(xp, fitted(xp, gradient, self.length))
            pairs = split(xp, xp.fft.ifft(whole, axis=-1)) * self.length
        return fitted(xp, pairs[..., : shape[-1]], shape[-2])

    def _counted(self, xp: Any, dtype: Any) -> Array:
        """How often each one-sided bin is in the whole transform, over its length."""
        counts = xp.full((self.taken, 1), 2 / self.length, dtype=dtype)
        counts[0] = 1 / self.length
        if self.length % 2 == 0:
            counts[-1] = 1 / self.length
        return counts  # type: ignore[no-any-return]  # xp is Any


def _bins(length: int) -> int:
    bins = bins_of(length)
    assert isinstance(bins, int), "the bins of a number are a number"
    return bins


def fitted(xp: Any, pairs: Array, length: int) -> Array:
    """The first `length` elements of (..., elements, parts), zeros where there are fewer."""
    have = pairs.shape[-2]
    if have >= length:
        return pairs[..., :length, :]
    result: Array = xp.zeros((*pairs.shape[:-2], length, pairs.shape[-1]), dtype=pairs.dtype)
    result[..., :have, :] = pairs
    return result


def joined(xp: Any, pairs: Array) -> Array:
    """(..., elements) of complex numbers, from (..., elements, 1 or 2)."""
    return pairs[..., 0] + 1j * pairs[..., 1] if pairs.shape[-1] == 2 else pairs[..., 0]


def split(xp: Any, values: Array) -> Array:
    """(..., elements, 2) from complex numbers."""
    return xp.stack([values.real, values.imag], axis=-1)  # type: ignore[no-any-return]  # xp is Any


# --- A signal cut into frames that may overlap, and frames added up where they lie in a signal ------------------------


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


# CuPy keeps a transform's work area with its plan, and drops plans: no graph may launch it again. So these wait.


@kernel("DFT", host_inputs=(1, 2), waits=True)
def dft(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The transform along one axis, which is the last but one for as long as it takes."""
    xp = context.xp
    (data,) = required(inputs, 1)
    axis, transform = dft_transform_of(data, optional(inputs, 1), optional(inputs, 2), attributes)
    wide = xp.moveaxis(data.astype(statistics_dtype(xp, data), copy=False), axis, -2)
    return (xp.moveaxis(transform(xp, wide), -2, axis).astype(data.dtype, copy=False),)


def dft_transform_of(
    data: Array, length: Array | None, axis: Array | None, attributes: Mapping[str, AttributeValue]
) -> tuple[int, Transform]:
    """(the axis counted from the front, what is done along it). Raises ValueError for a bad axis or length."""
    along = normalised(-2 if axis is None else int(axis.reshape(-1)[0].item()), data.ndim)
    is_inverse, is_onesided = bool(as_int(attributes["inverse"])), bool(as_int(attributes["onesided"]))
    if length is not None:
        count = int(length.reshape(-1)[0].item())
    else:
        natural = data.shape[along]
        count = int(samples_of(natural)) if is_inverse and is_onesided else natural
    if count < 1 or along == data.ndim - 1:
        raise ValueError(f"a transform of {count} samples along axis {along} of {data.shape}")
    return along, Transform(count, is_inverse, is_onesided)


@kernel("DFTGrad", domain=WEFT_DOMAIN, host_inputs=(2, 3), waits=True)
def dft_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The transform's transpose along its axis."""
    xp = context.xp
    gradient, data = required(inputs, 2)
    axis, transform = dft_transform_of(data, optional(inputs, 2), optional(inputs, 3), attributes)
    wide = xp.moveaxis(gradient.astype(statistics_dtype(xp, data), copy=False), axis, -2)
    back = transform.transposed(xp, wide, xp.moveaxis(data, axis, -2).shape)
    return (xp.moveaxis(back, -2, axis).astype(data.dtype, copy=False),)


@kernel("STFT", host_inputs=(1, 3), waits=True)
def stft(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The transform of each frame times the window."""
    xp = context.xp
    signal, step = required(inputs, 2)
    window = optional(inputs, 2)
    every, size, _ = frame_sizes(signal, step, window, optional(inputs, 3))
    frames = cut(xp, signal.astype(statistics_dtype(xp, signal), copy=False), every, size)
    if window is not None:
        frames = frames * window.astype(frames.dtype, copy=False)[:, None]
    transform = Transform(size, is_inverse=False, is_onesided=bool(as_int(attributes["onesided"])))
    return (transform(xp, frames).astype(signal.dtype, copy=False),)


@kernel("STFTGrad", domain=WEFT_DOMAIN, host_inputs=(2, 4), waits=True)
def stft_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each frame's gradient, times the window added up in the signal, times the frame in the window."""
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


_BLACKMAN_WINDOW_COEFFICIENTS = (0.42, -0.5, 0.08)


@kernel("BlackmanWindow", host_inputs=(0,), waits=True)
def blackman_window(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Blackman's window."""
    return (cosine_window(context, inputs, attributes, _BLACKMAN_WINDOW_COEFFICIENTS),)


_HAMMING_WINDOW_COEFFICIENTS = (25 / 46, -21 / 46)


@kernel("HammingWindow", host_inputs=(0,), waits=True)
def hamming_window(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Hamming's window."""
    return (cosine_window(context, inputs, attributes, _HAMMING_WINDOW_COEFFICIENTS),)


_HANN_WINDOW_COEFFICIENTS = (0.5, -0.5)


@kernel("HannWindow", host_inputs=(0,), waits=True)
def hann_window(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Hann's window."""
    return (cosine_window(context, inputs, attributes, _HANN_WINDOW_COEFFICIENTS),)


_MEL, _HERTZ = 2595.0, 700.0


@kernel("MelWeightMatrix", host_inputs=(0, 1, 2, 3, 4), waits=True)
def mel_weight_matrix(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Triangles between neighbouring edges that are equally far apart on the mel scale."""
    bands, length, rate, lowest, highest = (array.reshape(-1)[0].item() for array in required(inputs))
    if bands < 0 or length < 0 or rate < 1 or not 0 <= lowest <= highest < math.inf:
        raise ValueError(f"{bands} bands of a spectrum of {length} at rate {rate} from {lowest} to {highest} hertz")
    low, high = (_MEL * math.log10(1 + hertz / _HERTZ) for hertz in (lowest, highest))
    # The bands' edges and centres: one more than bands on either side; the last step ends at the upper edge.
    edges = low + (high - low) / (bands + 2) * np.arange(bands + 2)
    hertz = _HERTZ * (np.power(10.0, edges / _MEL) - 1)
    places = np.floor((length + 1) * hertz / rate)
    begin, centre, end = places[:-2], places[1:-1], places[2:]
    bins = np.arange(length // 2 + 1)[:, None]
    rising = np.where(bins == centre, 1.0, (bins - begin) / np.maximum(centre - begin, 1))
    falling = (end - bins) / np.maximum(end - centre, 1)
    weights = np.where((begin <= bins) & (bins <= centre), rising, np.where((centre < bins) & (bins < end), falling, 0))
    return (cast(context.xp, context.xp.asarray(weights), DTYPE_OF_NUMBER[as_int(attributes["output_datatype"])]),)
