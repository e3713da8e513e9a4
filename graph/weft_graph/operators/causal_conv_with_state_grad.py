"""CausalConvWithStateGrad(its inputs, gradients of its outputs): the gradients of the inputs.

Those of a bias and of a state that are left out are given all the same, as if they were zeros.
"""

from __future__ import annotations

from weft_graph.formals import FLOATS, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.operators.causal_conv_with_state import ATTRIBUTES
from weft_graph.schema import InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, weight = context.input(0), context.input(1)
    width = weight.shape[2]
    assert isinstance(width, int)
    bias = TensorType(weight.dtype, weight.shape[:1])
    return data, weight, bias, TensorType(data.dtype, (*data.shape[:2], width - 1))


SCHEMA = OpSchema(
    op_type="CausalConvWithStateGrad",
    inputs=(
        required("input", FLOATS),
        required("weight", FLOATS),
        optional("bias", FLOATS),
        optional("past_state", FLOATS),
        optional("output_gradient", FLOATS),
        optional("present_state_gradient", FLOATS),
    ),
    outputs=(
        required("input_gradient", FLOATS),
        required("weight_gradient", FLOATS),
        required("bias_gradient", FLOATS),
        required("past_state_gradient", FLOATS),
    ),
    infer=_infer,
    attributes=ATTRIBUTES,
    domain=WEFT_DOMAIN,
)
