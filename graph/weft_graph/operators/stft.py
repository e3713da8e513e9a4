"""STFT: the Fourier transform of each frame of a signal (batch, samples, 1 or 2), times a window.

Gives (batch, frames, bins, 2); with `onesided` half of the bins stand for real frames.
"""

from __future__ import annotations

from weft_graph.dimensions.dims import Dim, agree, settled
from weft_graph.formals import FLOATS, INDICES, optional, required, setting
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.spatial_flops import transformed
from weft_graph.shapes.spectra import bins_of, frames_of
from weft_graph.types import TensorType

STFT_ATTRIBUTES = {"onesided": Attribute(int, default=1)}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
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


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, given = incoming(context), context.node.inputs
    has_window = len(given) > 2 and given[2] != ""
    wanted = 2 if has_window and context.needs(2) else 1
    attributes = given_attributes(context, STFT_ATTRIBUTES)
    found = context.emit("STFTGrad", (gradient, *given), attributes, domain=WEFT_DOMAIN, outputs=wanted)
    return (found[0], None, found[1] if wanted == 2 else None, None)[: len(given)]


SCHEMA = OpSchema(
    op_type="STFT",
    inputs=(
        required("signal", FLOATS),
        required("frame_step", INDICES),
        setting(optional("window", FLOATS)),
        optional("frame_length", INDICES),
    ),
    outputs=(required("output", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes=STFT_ATTRIBUTES,
    flops=transformed,
)
