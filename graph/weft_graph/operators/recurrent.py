"""Recurrent layers: RNN, GRU, LSTM."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from weft_graph.formals import FLOATS, optional
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, Formal, OpSchema
from weft_graph.shapes.recurrent import (
    ATTRIBUTES,
    GRU,
    INPUTS,
    LSTM,
    OUTPUTS,
    RNN,
    Cell,
    gradient_formals,
    infer_recurrent,
    infer_recurrent_gradient,
    recurrent_flops,
    recurrent_gradient,
)


def _layer(
    op_type: str,
    cell: Cell,
    own: Mapping[str, Attribute],
    inputs: tuple[Formal, ...] = INPUTS,
    outputs: tuple[Formal, ...] = OUTPUTS,
) -> tuple[OpSchema, OpSchema]:
    """The layer, and its gradient: of the gradients of its outputs, Y, and its inputs, those of weights, bias, first
    states, and X last."""
    attributes = {**ATTRIBUTES, **own}
    layer = OpSchema(
        op_type=op_type,
        inputs=inputs,
        outputs=outputs,
        infer=partial(infer_recurrent, cell=cell),
        gradient=partial(recurrent_gradient, cell=cell, kept=tuple(attributes)),
        attributes=attributes,
        flops=recurrent_flops(cell),
        product=True,
    )
    given, made = gradient_formals(cell, inputs)
    gradient = OpSchema(
        op_type=f"{op_type}Grad",
        inputs=given,
        outputs=made,
        infer=partial(infer_recurrent_gradient, cell=cell),
        attributes=attributes,
        domain=WEFT_DOMAIN,
    )
    return layer, gradient


RNN_SCHEMA, RNN_GRAD = _layer("RNN", RNN, {})
"""RNN: a plain recurrent layer over sequences, in one direction or both."""


GRU_SCHEMA, GRU_GRAD = _layer("GRU", GRU, {"linear_before_reset": Attribute(int, default=0)})
"""GRU: a layer of gated recurrent units over sequences, in one direction or both."""


LSTM_SCHEMA, LSTM_GRAD = _layer(
    "LSTM",
    LSTM,
    {"input_forget": Attribute(int, default=0)},
    (*INPUTS, optional("initial_c", FLOATS), optional("P", FLOATS)),
    (*OUTPUTS, optional("Y_c", FLOATS)),
)
"""LSTM: a layer of long short-term memory over sequences, in one direction or both.

`clip` bounds whatever goes into an activation function, the memory on its way to the last of them too.
"""
