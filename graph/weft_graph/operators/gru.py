"""GRU: a layer of gated recurrent units over sequences, in one direction or both."""

from __future__ import annotations

from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.recurrent import (
    ATTRIBUTES,
    GRU,
    INPUTS,
    OUTPUTS,
    infer_recurrent,
    recurrent_flops,
    recurrent_gradient,
)
from weft_graph.types import TensorType

_ATTRIBUTES = {**ATTRIBUTES, "linear_before_reset": Attribute(int, default=0)}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return infer_recurrent(context, GRU)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return recurrent_gradient(context, GRU, tuple(_ATTRIBUTES))


SCHEMA = OpSchema(
    op_type="GRU",
    inputs=INPUTS,
    outputs=OUTPUTS,
    infer=_infer,
    gradient=_gradient,
    attributes=_ATTRIBUTES,
    flops=recurrent_flops(GRU),
)
