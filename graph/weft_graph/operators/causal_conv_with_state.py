"""CausalConvWithState: each channel with a kernel of its own, over what came before and now; then x * sigmoid(x).

The state is the last elements before the input, one fewer than the kernel has; zeros where it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.attributes import as_str
from weft_graph.dimensions.dims import agree
from weft_graph.formals import FLOATS, optional, required
from weft_graph.ir import WEFT_DOMAIN, Node
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.composing import given_attributes
from weft_graph.types import TensorType

ATTRIBUTES = {"activation": Attribute(str, default="none")}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    given = [index for index in range(4) if context.optional_input(index) is not None]
    check_same_dtype(context, *given)
    data, weight, bias, past = context.input(0), context.input(1), context.optional_input(2), context.optional_input(3)
    if as_str(context.attribute("activation")) not in {"none", "silu", "swish"}:
        raise context.shape_error(f"activation {context.attribute('activation')!r} is none of none, silu, swish")
    if data.rank != 3:
        raise context.shape_error(f"the input must be (batch, channels, length), got {data}")
    batch, channels, _ = data.shape
    width = weight.shape[2] if weight.rank == 3 else 0
    if not isinstance(width, int) or width < 1 or not agree(weight.shape[0], channels) or weight.shape[1] != 1:
        raise context.shape_error(f"weight {weight} must be (channels of {data}, 1, width)")
    if bias is not None and (bias.rank != 1 or not agree(bias.shape[0], channels)):
        raise context.shape_error(f"bias {bias} must have one number a channel of {data}")
    state = TensorType(data.dtype, (batch, channels, width - 1))
    if past is not None and not state.agrees_with(past):
        raise context.shape_error(f"past_state {past} must be {state}")
    return data, state


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    flowing = [context.gradient(index) or "" for index in range(2)]
    reads = [context.input(index) for index in range(4)]
    given = context.emit(
        "CausalConvWithStateGrad",
        (*reads, *flowing),
        given_attributes(context, ATTRIBUTES),
        domain=WEFT_DOMAIN,
        outputs=4,
    )
    return tuple(name if reads[place] else None for place, name in enumerate(given))[: len(context.node.inputs)]


def _flops(_node: Node, reads: Sequence[TensorType | None], writes: Sequence[TensorType]) -> int:
    weight = reads[1]
    assert weight is not None
    return writes[0].size * (2 * weight.static_shape[2] + 3)


SCHEMA = OpSchema(
    op_type="CausalConvWithState",
    inputs=(
        required("input", FLOATS),
        required("weight", FLOATS),
        optional("bias", FLOATS),
        optional("past_state", FLOATS),
    ),
    outputs=(required("output", FLOATS), required("present_state", FLOATS)),
    infer=_infer,
    gradient=_gradient,
    attributes=ATTRIBUTES,
    flops=_flops,
)
