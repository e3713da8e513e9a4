"""STFTGrad(gradient, signal, frame_step, window, frame_length): the gradients of the signal and of the window."""

from __future__ import annotations

from weft_graph.formals import FLOATS, INDICES, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.stft import STFT_ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.shapes.spatial_flops import transformed
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    window = context.optional_input(3)
    return (context.input(1), *(() if window is None else (window,)))


SCHEMA = OpSchema(
    op_type="STFTGrad",
    inputs=(
        required("gradient", FLOATS),
        required("signal", FLOATS),
        required("frame_step", INDICES),
        optional("window", FLOATS),
        optional("frame_length", INDICES),
    ),
    outputs=(required("signal_gradient", FLOATS), optional("window_gradient", FLOATS)),
    infer=_infer,
    attributes=STFT_ATTRIBUTES,
    domain=WEFT_DOMAIN,
    flops=transformed,
)
