"""RNN: a plain recurrent layer over sequences, in one direction or both."""

from __future__ import annotations

from weft_graph.schema import GradientContext, InferContext, OpSchema
from weft_graph.shapes.recurrent import (
    ATTRIBUTES,
    INPUTS,
    OUTPUTS,
    RNN,
    infer_recurrent,
    recurrent_flops,
    recurrent_gradient,
)
from weft_graph.types import TensorType

_ATTRIBUTES = ATTRIBUTES


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return infer_recurrent(context, RNN)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return recurrent_gradient(context, RNN, tuple(_ATTRIBUTES))


SCHEMA = OpSchema(
    op_type="RNN",
    inputs=INPUTS,
    outputs=OUTPUTS,
    infer=_infer,
    gradient=_gradient,
    attributes=_ATTRIBUTES,
    flops=recurrent_flops(RNN),
)
