"""Fourier transforms and the windows of signals."""

from __future__ import annotations

from weft_graph.dimensions import Dim, agree, product, settled, unknown_of
from weft_graph.formals import FLOATS, INDICES, INT64, NUMBERS, optional, required, setting
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype, dtype_attribute, infer_like, normalised
from weft_graph.shapes.flops import moved, transformed
from weft_graph.shapes.gradients import given_attributes, incoming
from weft_graph.types import DType, TensorType

# --- Lengths of signals and of their Fourier transforms; a transform of whole numbers of samples has bins -------------


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


# --- Types of the window functions and of MelWeightMatrix, whose sizes are values -------------------------------------


OUTPUT_DATATYPE = {"output_datatype": Attribute(int, default=NUMBER_OF_DTYPE[DType.FLOAT32])}
WINDOW_ATTRIBUTES = {**OUTPUT_DATATYPE, "periodic": Attribute(int, default=1)}


def output_dtype(context: InferContext) -> DType:
    """The attribute `output_datatype`. Raises DTypeError unless it is a type of numbers."""
    dtype = dtype_attribute(context, "output_datatype")
    if dtype not in NUMBERS:
        raise context.dtype_error(f"output_datatype is {dtype}, which is none of {', '.join(sorted(NUMBERS))}")
    return dtype


def one_number(context: InferContext, index: int, name: str) -> int | None:
    """Input `index`, one whole number, where it is known. Raises ShapeError where it is several, or below 0."""
    if not agree(product(context.input(index).shape), 1):
        raise context.shape_error(f"{name} {context.input(index)} must be one number")
    known = context.constant(index)
    if known is None:
        return None
    number = int(known.reshape(-1)[0])
    if number < 0:
        raise context.shape_error(f"{name} {number} is below 0")
    return number


def infer_window(context: InferContext) -> tuple[TensorType, ...]:
    """As many numbers as input 0 says."""
    size = one_number(context, 0, "size")
    count: Dim | None = size
    if count is None:
        dims = context.dims(0)
        count = context.unknown() if dims is None else dims[0]
    return (TensorType(output_dtype(context), (count,)),)


DFT_DFT_ATTRIBUTES = {"inverse": Attribute(int, default=0), "onesided": Attribute(int, default=0)}


def _infer_dft(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    inverse, onesided = bool(context.attribute("inverse")), bool(context.attribute("onesided"))
    if data.rank < 2 or data.shape[-1] not in {1, 2}:
        raise context.shape_error(f"the last dimension must be 1 (real) or 2 (complex), got {data}")
    if onesided and inverse != (data.shape[-1] == 2):
        kind = "complex" if inverse else "real"
        raise context.shape_error(f"a one-sided transform of this direction takes {kind} input, got {data}")
    axis, length = _axis(context, data), _length(context)
    parts = 1 if onesided and inverse else 2
    if axis is None:
        # Which dimension changes only a step's values decide, unless none does.
        kept = length is None and not onesided
        return (TensorType(data.dtype, (*(dim if kept else context.unknown() for dim in data.shape[:-1]), parts)),)
    if length is None:
        length = samples_of(data.shape[axis]) if onesided and inverse else data.shape[axis]
    if isinstance(length, int) and length < 1:
        raise context.shape_error(f"a transform of {length} samples; the input is {data}")
    shape = list(data.shape)
    shape[axis] = bins_of(length) if onesided and not inverse else length
    shape[-1] = parts
    return (TensorType(data.dtype, tuple(shape)),)


def _axis(context: InferContext, data: TensorType) -> int | None:
    """The axis counted from the front, None where it is not known before a step."""
    axis, given = -2, context.optional_input(2)
    if given is not None:
        known = context.constant(2)
        if product(given.shape) != 1:
            raise context.shape_error(f"axis must be one number, got {given}")
        if known is None:
            return None
        axis = int(known.reshape(-1)[0])
    try:
        counted = normalised(axis, data.rank)
    except ValueError as error:
        raise context.shape_error(f"{error} of {data}") from None
    if counted == data.rank - 1:
        raise context.shape_error(f"axis {axis} is that of real and imaginary part; the input is {data}")
    return counted


def _length(context: InferContext) -> Dim | None:
    if context.optional_input(1) is None:
        return None
    lengths = context.dims(1)
    if lengths is None or len(lengths) != 1:
        raise context.shape_error(f"dft_length must be one number, got {context.input(1)}")
    return lengths[0]


def _dft_gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), *context.node.inputs)
    (data,) = context.emit("DFTGrad", inputs, given_attributes(context, DFT_DFT_ATTRIBUTES), domain=WEFT_DOMAIN)
    return (data, *(None,) * (len(context.node.inputs) - 1))


DFT = OpSchema(
    op_type="DFT",
    inputs=(required("input", FLOATS), optional("dft_length", INDICES), optional("axis", INT64)),
    outputs=(required("output", FLOATS),),
    infer=_infer_dft,
    gradient=_dft_gradient,
    attributes=DFT_DFT_ATTRIBUTES,
    flops=transformed,
)
"""DFT: the discrete Fourier transform along one axis; the last dimension is 1 (real) or 2 (real and imaginary part).

With `onesided` half of the bins stand for a real signal, on the way there and, with `inverse`, on the way back.
"""


DFT_GRAD = OpSchema(
    op_type="DFTGrad",
    inputs=(
        required("gradient", FLOATS),
        required("input", FLOATS),
        optional("dft_length", INDICES),
        optional("axis", INT64),
    ),
    outputs=(required("input_gradient", FLOATS),),
    infer=infer_like(1),
    attributes=DFT_DFT_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    flops=transformed,
)
"""DFTGrad(gradient, input, dft_length, axis): the gradient of DFT's input; DFT's attributes."""


STFT_STFT_ATTRIBUTES = {"onesided": Attribute(int, default=1)}


def _infer_stft(context: InferContext) -> tuple[TensorType, ...]:
    signal, window = context.input(0), context.optional_input(2)
    if signal.rank != 3 or signal.shape[2] not in {1, 2}:
        raise context.shape_error(f"the signal must be (batch, samples, 1 or 2), got {signal}")
    onesided = bool(context.attribute("onesided"))
    if onesided and signal.shape[2] == 2:
        raise context.shape_error(f"a one-sided transform takes a real signal, got {signal}")
    step, frame = _one(context, 1, "frame_step"), signal.shape[1]
    if context.optional_input(3) is not None:
        frame = _one(context, 3, "frame_length")
    if window is not None:
        check_same_dtype(context, 0, 2)
        given = frame if context.optional_input(3) is not None else window.shape[0] if window.rank == 1 else 0
        if window.rank != 1 or not agree(window.shape[0], given):
            raise context.shape_error(f"the window {window} must have one number for each of {given} samples")
        frame = settled(window.shape[0], given)
    try:
        frames = frames_of(signal.shape[1], frame, step)
    except ValueError as error:
        raise context.shape_error(f"{error}; the signal is {signal}") from None
    return (TensorType(signal.dtype, (signal.shape[0], frames, bins_of(frame) if onesided else frame, 2)),)


def _one(context: InferContext, index: int, name: str) -> Dim:
    numbers = context.dims(index)
    if numbers is None or len(numbers) != 1:
        raise context.shape_error(f"{name} must be one number, got {context.input(index)}")
    return numbers[0]


def _stft_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, given = incoming(context), context.node.inputs
    has_window = len(given) > 2 and given[2] != ""
    wanted = 2 if has_window and context.needs(2) else 1
    attributes = given_attributes(context, STFT_STFT_ATTRIBUTES)
    found = context.emit("STFTGrad", (gradient, *given), attributes, domain=WEFT_DOMAIN, outputs=wanted)
    return (found[0], None, found[1] if wanted == 2 else None, None)[: len(given)]


STFT = OpSchema(
    op_type="STFT",
    inputs=(
        required("signal", FLOATS),
        required("frame_step", INDICES),
        setting(optional("window", FLOATS)),
        optional("frame_length", INDICES),
    ),
    outputs=(required("output", FLOATS),),
    infer=_infer_stft,
    gradient=_stft_gradient,
    attributes=STFT_STFT_ATTRIBUTES,
    flops=transformed,
)
"""STFT: the Fourier transform of each frame of a signal (batch, samples, 1 or 2), times a window.

Gives (batch, frames, bins, 2); with `onesided` half of the bins stand for real frames.
"""


def _infer_stft_grad(context: InferContext) -> tuple[TensorType, ...]:
    window = context.optional_input(3)
    return (context.input(1), *(() if window is None else (window,)))


STFT_GRAD = OpSchema(
    op_type="STFTGrad",
    inputs=(
        required("gradient", FLOATS),
        required("signal", FLOATS),
        required("frame_step", INDICES),
        optional("window", FLOATS),
        optional("frame_length", INDICES),
    ),
    outputs=(required("signal_gradient", FLOATS), optional("window_gradient", FLOATS)),
    infer=_infer_stft_grad,
    attributes=STFT_STFT_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    flops=transformed,
)
"""STFTGrad(gradient, signal, frame_step, window, frame_length): the gradients of the signal and of the window."""


BLACKMAN_WINDOW = OpSchema(
    op_type="BlackmanWindow",
    inputs=(required("size", INDICES),),
    outputs=(required("output", NUMBERS),),
    infer=infer_window,
    attributes=WINDOW_ATTRIBUTES,
    flops=moved,
)
"""BlackmanWindow: 0.42 - 0.5 cos(2 pi n / N) + 0.08 cos(4 pi n / N) for n below `size`."""


HAMMING_WINDOW = OpSchema(
    op_type="HammingWindow",
    inputs=(required("size", INDICES),),
    outputs=(required("output", NUMBERS),),
    infer=infer_window,
    attributes=WINDOW_ATTRIBUTES,
    flops=moved,
)
"""HammingWindow: 25/46 - 21/46 cos(2 pi n / N) for n below `size`."""


HANN_WINDOW = OpSchema(
    op_type="HannWindow",
    inputs=(required("size", INDICES),),
    outputs=(required("output", NUMBERS),),
    infer=infer_window,
    attributes=WINDOW_ATTRIBUTES,
    flops=moved,
)
"""HannWindow: 1/2 - 1/2 cos(2 pi n / N) for n below `size`."""


def _infer_mel_weight_matrix(context: InferContext) -> tuple[TensorType, ...]:
    for index, name in ((2, "sample_rate"), (3, "lower_edge_hertz"), (4, "upper_edge_hertz")):
        one_number(context, index, name)
    bands, length = one_number(context, 0, "num_mel_bins"), one_number(context, 1, "dft_length")
    bins = context.unknown() if length is None else length // 2 + 1
    return (TensorType(output_dtype(context), (bins, context.unknown() if bands is None else bands)),)


MEL_WEIGHT_MATRIX = OpSchema(
    op_type="MelWeightMatrix",
    inputs=(
        required("num_mel_bins", INDICES),
        required("dft_length", INDICES),
        required("sample_rate", INDICES),
        required("lower_edge_hertz", FLOATS),
        required("upper_edge_hertz", FLOATS),
    ),
    outputs=(required("output", NUMBERS),),
    infer=_infer_mel_weight_matrix,
    attributes=OUTPUT_DATATYPE,
    flops=moved,
)
"""MelWeightMatrix: what each bin of a spectrum has of each band on the mel scale, (bins, bands): triangles of height 1.

A frequency of f hertz is 2595 * log10(1 + f / 700) mel.
"""
