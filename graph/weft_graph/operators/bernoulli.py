"""Bernoulli: 1 with the probability that the input is, else 0; a function of steps, without a gradient."""

from __future__ import annotations

from weft_graph.formals import BOOLEANS, FLOATS, NUMBERS, required
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.shapes.drawing import SEED, drawn_dtype
from weft_graph.shapes.flow import flat
from weft_graph.types import TensorType

_DTYPES = NUMBERS | BOOLEANS


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    return (TensorType(drawn_dtype(context, data.dtype, _DTYPES), data.shape),)


SCHEMA = OpSchema(
    op_type="Bernoulli",
    inputs=(required("input", FLOATS),),
    outputs=(required("output", _DTYPES),),
    infer=_infer,
    gradient=flat,
    attributes={**SEED, "dtype": Attribute(int)},
    random=True,
)
