"""FlexAttention, of ONNX's preview domain: attention whose scores and probabilities a body each may change.

Each body gets all scores or probabilities at once, (batch, heads, queries, keys) of the type `softmax_precision`
(float32, or float64 for inputs of that type), and gives the same shape. Without bodies it is Attention without a mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft_graph.attributes import as_body, as_float, as_int
from weft_graph.formals import ANY, FLOATS, required, rest
from weft_graph.ir import WEFT_DOMAIN, AttributeValue, Node, Subgraph
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER, NUMBER_OF_DTYPE
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.attention import attention_dims, check_precision, grouped_scores
from weft_graph.shapes.flow import incoming, refusal
from weft_graph.types import DType, TensorType

PREVIEW_DOMAIN = "ai.onnx.preview"
BODIES = ("score_mod", "prob_mod")


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    if any(context.input(index).rank != 4 for index in range(3)):
        raise context.shape_error("Q, K and V are (batch, heads, length, size)")
    dims = attention_dims(context, cached=False)
    check_precision(context)
    scale = context.attribute("scale")
    if scale is not None and not math.isfinite(as_float(scale)):
        raise context.shape_error(f"scale {as_float(scale)} must be finite")
    scores = TensorType(softmax_dtype(context.attribute("softmax_precision"), context.input(0).dtype), dims.scores)
    captured = [context.input(index) for index in range(3, len(context.node.inputs))]
    for name in BODIES:
        if context.attribute(name) is None:
            continue
        body = as_body(context.attribute(name))
        if len(body.inputs) != 1 or len(body.outputs) != 1 or len(body.captured) != len(captured):
            raise context.shape_error(f"{name} takes one tensor, gives one and captures {len(captured)} values")
        (given,) = context.body(body, (scores, *captured))
        if not scores.agrees_with(given):
            raise context.shape_error(f"{name} makes {given} of {scores}, and must keep it")
    return (TensorType(context.input(0).dtype, (*dims.scores[:3], dims.value_size)),)


def softmax_dtype(precision: AttributeValue | None, data: DType) -> DType:
    """The type of scores and probabilities."""
    if precision is not None:
        return DTYPE_OF_NUMBER[as_int(precision)]
    return data if data == DType.FLOAT64 else DType.FLOAT32


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    bodies = [name for name in BODIES if context.attribute(name) is not None]
    if bodies:
        raise refusal(context, f"there is no gradient through {' and '.join(bodies)}")
    precision = softmax_dtype(context.attribute("softmax_precision"), context.type_of(context.input(0)).dtype)
    attributes: dict[str, AttributeValue] = {"softmax_precision": NUMBER_OF_DTYPE[precision]}
    if context.attribute("scale") is not None:
        attributes["scale"] = as_float(context.attribute("scale"))
    inputs = (*context.node.inputs[:3], "", "", "", "", incoming(context))
    return context.emit("AttentionGrad", inputs, attributes, domain=WEFT_DOMAIN, outputs=3)


def _flops(_node: Node, reads: Sequence[TensorType | None], writes: Sequence[TensorType]) -> int:
    q = reads[0]
    assert q is not None
    return grouped_scores(tuple(reads[:3]), writes[0], 1) * (2 * (q.static_shape[3] + writes[0].static_shape[3]) + 5)


SCHEMA = OpSchema(
    op_type="FlexAttention",
    inputs=(required("Q", FLOATS), required("K", FLOATS), required("V", FLOATS), rest("captured", ANY)),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes={
        "prob_mod": Attribute(Subgraph),
        "scale": Attribute(float),
        "score_mod": Attribute(Subgraph),
        "softmax_precision": Attribute(int),
    },
    domain=PREVIEW_DOMAIN,
    flops=_flops,
)
