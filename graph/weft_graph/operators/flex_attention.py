"""FlexAttention, of ONNX's preview domain: attention whose scores and probabilities a body each may change.

Each body gets all scores or probabilities at once, (batch, heads, queries, keys) of the type `softmax_precision`
(float32, or float64 for inputs of that type), and gives the same shape. Without bodies it is Attention without a mask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_body, as_float, as_int
from weft_graph.formals import ANY, FLOATS, required, rest
from weft_graph.ir import WEFT_DOMAIN, AttributeValue, Node, Subgraph
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER, NUMBER_OF_DTYPE
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.attention import attention_dims, check_precision, grouped_scores
from weft_graph.shapes.flow import incoming
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
    precision = softmax_dtype(context.attribute("softmax_precision"), context.type_of(context.input(0)).dtype)
    attributes: dict[str, AttributeValue] = {"softmax_precision": NUMBER_OF_DTYPE[precision]}
    if context.attribute("scale") is not None:
        attributes["scale"] = as_float(context.attribute("scale"))
    reads, captured = context.node.inputs[:3], context.node.inputs[3:]
    if not bodies:
        inputs = (*reads, "", "", "", "", incoming(context))
        return (
            *context.emit("AttentionGrad", inputs, attributes, domain=WEFT_DOMAIN, outputs=3),
            *(None for _ in captured),
        )
    wanted = tuple(place for place in range(len(captured)) if context.needs(3 + place))
    attributes["captured"] = wanted
    for name in bodies:
        attributes.update(_derived(context, name, precision, wanted))
    inputs = (incoming(context), *reads, *captured)
    given = context.emit("FlexAttentionGrad", inputs, attributes, domain=WEFT_DOMAIN, outputs=3 + len(wanted))
    found = dict(zip(wanted, given[3:], strict=True))
    return (*given[:3], *(found.get(place) for place in range(len(captured))))


def _derived(
    context: GradientContext, name: str, precision: DType, wanted: tuple[int, ...]
) -> Mapping[str, AttributeValue]:
    """A body once more, as `name`, and its derivative: of what it was given and the gradient of what it gives.

    The derivative gives the gradients of what the body was given and of the wanted captured values.
    """
    body, captured = as_body(context.attribute(name)), context.node.inputs[3:]
    q, k = (context.type_of(context.input(index)).shape for index in range(2))
    scores = TensorType(precision, (*q[:3], k[2]))
    types = (scores, *(context.type_of(value) for value in captured))
    # What comes in depends on queries and keys, and probabilities on what the scores' body captures too.
    leading = [place for place in range(len(context.node.inputs)) if place != 2 and context.needs(place)]
    if name == "score_mod" or context.attribute("score_mod") is None:
        leading = [place for place in leading if place < 2]
    sources = (context.input(leading[0]) if leading else "", *captured)
    again, back = (context.derive(name, types, (0,), {}, sources=sources) for _ in range(2))
    values = (body.inputs[0], *(body.captured[place] for place in wanted))
    gradients = [back.gradient(value) or back.zeros(value) for value in values]
    seed = back.seeds.get(0, f"{body.inputs[0]}:gradient")
    return {
        name: again.closed(body.inputs, body.captured, body.outputs),
        f"{name}_grad": back.closed((body.inputs[0], seed), body.captured, gradients),
    }


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
    work=_flops,  # of the scores; what the bodies do is not in it, so no rule may take it
)
