"""LSTM: a layer of long short-term memory over sequences, in one direction or both.

`clip` bounds whatever goes into an activation function, the memory on its way to the last of them too.
"""

from __future__ import annotations

from weft_graph.formals import FLOATS, optional
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.recurrent import (
    ATTRIBUTES,
    INPUTS,
    LSTM,
    OUTPUTS,
    infer_recurrent,
    recurrent_flops,
    recurrent_gradient,
)
from weft_graph.types import TensorType

_ATTRIBUTES = {**ATTRIBUTES, "input_forget": Attribute(int, default=0)}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    return infer_recurrent(context, LSTM)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    return recurrent_gradient(context, LSTM, tuple(_ATTRIBUTES))


SCHEMA = OpSchema(
    op_type="LSTM",
    inputs=(*INPUTS, optional("initial_c", FLOATS), optional("P", FLOATS)),
    outputs=(*OUTPUTS, optional("Y_c", FLOATS)),
    infer=_infer,
    gradient=_gradient,
    attributes=_ATTRIBUTES,
    flops=recurrent_flops(LSTM),
)
