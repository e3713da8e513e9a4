"""Fourier transforms and the windows of signals."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.operators.signals import samples_of
from weft_graph.shapes.broadcasting import normalised
from weft_kernels.arguments import optional, required
from weft_kernels.casting import cast
from weft_kernels.element_types import statistics_dtype
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.signals.fourier import Transform
from weft_kernels.signals.frames import added_up, cut, frame_sizes
from weft_kernels.signals.window_functions import cosine_window


@kernel("DFT", host_inputs=(1, 2))
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


@kernel("DFTGrad", domain=WEFT_DOMAIN, host_inputs=(2, 3))
def dft_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The transform's transpose along its axis."""
    xp = context.xp
    gradient, data = required(inputs, 2)
    axis, transform = dft_transform_of(data, optional(inputs, 2), optional(inputs, 3), attributes)
    wide = xp.moveaxis(gradient.astype(statistics_dtype(xp, data), copy=False), axis, -2)
    back = transform.transposed(xp, wide, xp.moveaxis(data, axis, -2).shape)
    return (xp.moveaxis(back, -2, axis).astype(data.dtype, copy=False),)


@kernel("STFT", host_inputs=(1, 3))
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


@kernel("STFTGrad", domain=WEFT_DOMAIN, host_inputs=(2, 4))
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


@kernel("BlackmanWindow", host_inputs=(0,))
def blackman_window(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Blackman's window."""
    return (cosine_window(context, inputs, attributes, _BLACKMAN_WINDOW_COEFFICIENTS),)


_HAMMING_WINDOW_COEFFICIENTS = (25 / 46, -21 / 46)


@kernel("HammingWindow", host_inputs=(0,))
def hamming_window(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Hamming's window."""
    return (cosine_window(context, inputs, attributes, _HAMMING_WINDOW_COEFFICIENTS),)


_HANN_WINDOW_COEFFICIENTS = (0.5, -0.5)


@kernel("HannWindow", host_inputs=(0,))
def hann_window(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Hann's window."""
    return (cosine_window(context, inputs, attributes, _HANN_WINDOW_COEFFICIENTS),)


_MEL, _HERTZ = 2595.0, 700.0


@kernel("MelWeightMatrix", host_inputs=(0, 1, 2, 3, 4))
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
