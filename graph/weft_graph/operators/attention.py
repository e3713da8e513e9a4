"""Attention in its forms, and what goes with it: rotary embeddings, convolutions with a state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft_graph.attributes import as_body, as_float, as_int, as_ints, as_str
from weft_graph.dimensions import Dim, agree, product, quotient
from weft_graph.formals import ANY, BOOLEANS, FLOATS, INDICES, INT64, NUMBERS, optional, required, rest, setting
from weft_graph.ir import WEFT_DOMAIN, AttributeValue, Node, Subgraph
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER, NUMBER_OF_DTYPE
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema, Setting
from weft_graph.shapes.attention import attention_dims, check_attending, check_precision, grouped_scores, joined_heads
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.gradients import apply, given_attributes, incoming
from weft_graph.types import DType, TensorType

ATTENTION_ATTRIBUTES = {
    "is_causal": Attribute(int, default=0),
    "kv_num_heads": Attribute(int),
    "left_window_size": Attribute(int, default=-1),
    "q_num_heads": Attribute(int),
    "qk_matmul_output_mode": Attribute(int, default=0),
    "right_window_size": Attribute(int, default=-1),
    "scale": Attribute(float),
    "softcap": Attribute(float, default=0.0),
    "softmax_precision": Attribute(int),
}


def _infer_attention(context: InferContext) -> tuple[TensorType, ...]:
    dims = attention_dims(context)
    check_attending(context, dims)
    q, v = context.input(0), context.input(2)
    cache = (dims.batch, dims.kv_heads, dims.keys)
    return (
        TensorType(q.dtype, joined_heads(q.rank, dims.batch, dims.heads, dims.queries, dims.value_size)),
        TensorType(q.dtype, (*cache, dims.size)),
        TensorType(v.dtype, (*cache, dims.value_size)),
        TensorType(q.dtype, dims.scores),
    )


def _attention_gradient(context: GradientContext) -> tuple[str | None, ...]:
    reads = [context.input(index) for index in range(7)]
    flowing = [context.gradient(index) or "" for index in range(4)]
    mask = bool(reads[3]) and context.needs(3)
    past = bool(reads[4]) and (context.needs(4) or context.needs(5))
    given = context.emit(
        "AttentionGrad",
        (*reads, *flowing),
        given_attributes(context, ATTENTION_ATTRIBUTES),
        domain=WEFT_DOMAIN,
        outputs=6 if mask else 5 if past else 3,
    )
    q, k, v, past_key, past_value, of_mask = (*given, None, None, None)[:6]
    gradients = (q, k, v, of_mask, past_key if past else None, past_value if past else None, None)
    return gradients[: len(context.node.inputs)]


def _attention_flops(node: Node, reads: Sequence[TensorType | None], writes: Sequence[TensorType]) -> int:
    q = reads[0]
    assert q is not None
    heads = as_int(node.attributes.get("q_num_heads", 1))
    sizes = q.static_shape[-1] + writes[0].static_shape[-1]
    width = sizes if q.rank == 4 else sizes // heads
    return grouped_scores(tuple(reads), writes[0], heads) * (2 * width + 5)


ATTENTION = OpSchema(
    op_type="Attention",
    inputs=(
        required("Q", FLOATS),
        required("K", FLOATS),
        required("V", FLOATS),
        setting(optional("attn_mask", NUMBERS | BOOLEANS), Setting.GIVEN),
        optional("past_key", FLOATS),
        optional("past_value", FLOATS),
        optional("nonpad_kv_seqlen", INT64),
    ),
    outputs=(
        required("Y", FLOATS),
        optional("present_key", FLOATS),
        optional("present_value", FLOATS),
        optional("qk_matmul_output", FLOATS),
    ),
    infer=_infer_attention,
    gradient=_attention_gradient,
    attributes=ATTENTION_ATTRIBUTES,
    flops=_attention_flops,
    product=True,
)
"""Attention, opset 25: softmax(Q K' * scale + bias) V for each head.

Heads of keys and values may be shared by groups of queries' heads. The bias is of a mask, of causality, of a window
and of the counts of keys that are no padding; a query that may attend to nothing gives zeros. A mask shorter than the
keys hides the rest, also where its last dimension is 1. float16 and bfloat16 are computed in float32.
"""


def _infer_attention_grad(context: InferContext) -> tuple[TensorType, ...]:
    empty = TensorType(context.input(0).dtype, (0,))
    mask = context.optional_input(3)
    return (
        *(context.input(index) for index in range(3)),
        context.optional_input(4) or empty,
        context.optional_input(5) or empty,
        mask if mask is not None and mask.dtype.is_float else empty,
    )


ATTENTION_GRAD = OpSchema(
    op_type="AttentionGrad",
    inputs=(
        required("Q", FLOATS),
        required("K", FLOATS),
        required("V", FLOATS),
        optional("attn_mask", NUMBERS | BOOLEANS),
        optional("past_key", FLOATS),
        optional("past_value", FLOATS),
        optional("nonpad_kv_seqlen", INT64),
        optional("Y_gradient", FLOATS),
        optional("present_key_gradient", FLOATS),
        optional("present_value_gradient", FLOATS),
        optional("qk_matmul_output_gradient", FLOATS),
    ),
    outputs=(
        required("Q_gradient", FLOATS),
        required("K_gradient", FLOATS),
        required("V_gradient", FLOATS),
        optional("past_key_gradient", FLOATS),
        optional("past_value_gradient", FLOATS),
        optional("attn_mask_gradient", FLOATS),
    ),
    infer=_infer_attention_grad,
    attributes=ATTENTION_ATTRIBUTES,
    domain=WEFT_DOMAIN,
)
"""AttentionGrad(Attention's inputs, gradients of its outputs): those of Q, K, V, past_key, past_value and attn_mask.

Probabilities are computed again, a block of them at a time. Without a cache, the gradients of its parts are empty
vectors; a mask that is not of floats has an empty one too.
"""


PREVIEW_DOMAIN = "ai.onnx.preview"


BODIES = ("score_mod", "prob_mod")


def _infer_flex_attention(context: InferContext) -> tuple[TensorType, ...]:
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


def _flex_attention_gradient(context: GradientContext) -> tuple[str | None, ...]:
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


def _flex_attention_flops(_node: Node, reads: Sequence[TensorType | None], writes: Sequence[TensorType]) -> int:
    q = reads[0]
    assert q is not None
    return grouped_scores(tuple(reads[:3]), writes[0], 1) * (2 * (q.static_shape[3] + writes[0].static_shape[3]) + 5)


FLEX_ATTENTION = OpSchema(
    op_type="FlexAttention",
    inputs=(required("Q", FLOATS), required("K", FLOATS), required("V", FLOATS), rest("captured", ANY)),
    outputs=(required("Y", FLOATS),),
    infer=_infer_flex_attention,
    gradient=_flex_attention_gradient,
    attributes={
        "prob_mod": Attribute(Subgraph),
        "scale": Attribute(float),
        "score_mod": Attribute(Subgraph),
        "softmax_precision": Attribute(int),
    },
    domain=PREVIEW_DOMAIN,
    work=_flex_attention_flops,  # of the scores; what the bodies do is not in it, so no rule may take it
)
"""FlexAttention, of ONNX's preview domain: attention whose scores and probabilities a body each may change.

Each body gets all scores or probabilities at once, (batch, heads, queries, keys) of the type `softmax_precision`
(float32, or float64 for inputs of that type), and gives the same shape. Without bodies it is Attention without a mask.
"""


def _infer_flex_attention_grad(context: InferContext) -> tuple[TensorType, ...]:
    places = (1, 2, 3, *(4 + place for place in as_ints(context.attribute("captured"))))
    return tuple(context.input(place) for place in places)


FLEX_ATTENTION_GRAD = OpSchema(
    op_type="FlexAttentionGrad",
    inputs=(
        required("gradient", FLOATS),
        required("Q", FLOATS),
        required("K", FLOATS),
        required("V", FLOATS),
        rest("captured", ANY),
    ),
    outputs=(
        required("Q_gradient", FLOATS),
        required("K_gradient", FLOATS),
        required("V_gradient", FLOATS),
        rest("captured_gradients", FLOATS),
    ),
    infer=_infer_flex_attention_grad,
    attributes={
        "captured": Attribute(tuple, required=True),
        "prob_mod": Attribute(Subgraph),
        "prob_mod_grad": Attribute(Subgraph),
        "scale": Attribute(float),
        "score_mod": Attribute(Subgraph),
        "score_mod_grad": Attribute(Subgraph),
        "softmax_precision": Attribute(int),
    },
    domain=WEFT_DOMAIN,
)
"""FlexAttentionGrad(gradient, Q, K, V, captured values): the gradients of Q, K, V and of some captured values.

`score_mod` and `prob_mod` are the node's bodies, `score_mod_grad` and `prob_mod_grad` take what these were given and
the gradient of what they give: see FlexAttention. `captured` are the places of the captured values with a gradient.
"""


LINEAR_ATTENTION_ATTRIBUTES = {
    "chunk_size": Attribute(int, default=64),
    "kv_num_heads": Attribute(int, required=True),
    "q_num_heads": Attribute(int, required=True),
    "scale": Attribute(float, default=0.0),
    "update_rule": Attribute(str, default="gated_delta"),
}


READS = {"linear": (), "gated": (4,), "delta": (5,), "gated_delta": (4, 5)}
"""The optional inputs that each rule reads: decay and beta."""


def _infer_linear_attention(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 0, 1, 2)
    heads, kv_heads = as_int(context.attribute("q_num_heads")), as_int(context.attribute("kv_num_heads"))
    if kv_heads < 1 or heads < 1 or heads % kv_heads:
        raise context.shape_error(f"{heads} heads of queries are no multiple of {kv_heads} heads of keys")
    sizes = [
        _linear_attention_head_size(context, index, count) for index, count in enumerate((heads, kv_heads, kv_heads))
    ]
    if not agree(sizes[0], sizes[1]):
        raise context.shape_error(f"heads of queries have {sizes[0]} elements, those of keys {sizes[1]}")
    _check_settings(context)
    query = context.input(0)
    batch, length = query.shape[:2]
    rule = as_str(context.attribute("update_rule"))
    for index, name, widths in (
        (4, "decay", {kv_heads, product((kv_heads, sizes[1]))}),
        (5, "beta", {kv_heads, 1}),
    ):
        type_ = context.optional_input(index)
        if index in READS[rule] and type_ is None:
            raise context.shape_error(f"update_rule {rule} needs {name}")
        if type_ is not None and not (_is_by_token(query, type_) and type_.shape[2] in widths):
            raise context.shape_error(f"{name} {type_} must be (batch, length, {' or '.join(map(str, widths))})")
    past = context.optional_input(3)
    state = TensorType(query.dtype if past is None else past.dtype, (batch, kv_heads, sizes[1], sizes[2]))
    if past is not None and not state.agrees_with(past):
        raise context.shape_error(f"past_state {past} must be {state}")
    return TensorType(query.dtype, (batch, length, product((heads, sizes[2])))), state


def _linear_attention_head_size(context: InferContext, index: int, heads: int) -> Dim:
    type_ = context.input(index)
    size = quotient(type_.shape[2:], (heads,)) if type_.rank == 3 else None
    if size is None or size == 0 or not _is_by_token(context.input(0), type_):
        raise context.shape_error(f"input {index} must be (batch, length, {heads} * size), got {type_}")
    return size


def _is_by_token(query: TensorType, type_: TensorType) -> bool:
    return type_.rank == 3 and all(agree(a, b) for a, b in zip(query.shape[:2], type_.shape[:2], strict=True))


def _check_settings(context: InferContext) -> None:
    rule, scale = as_str(context.attribute("update_rule")), as_float(context.attribute("scale"))
    if rule not in READS:
        raise context.shape_error(f"update_rule {rule!r} is none of {', '.join(READS)}")
    if not math.isfinite(scale):
        raise context.shape_error(f"scale {scale} must be finite")
    if as_int(context.attribute("chunk_size")) < 1:
        raise context.shape_error(f"chunk_size {context.attribute('chunk_size')} must be at least 1")


def _linear_attention_gradient(context: GradientContext) -> tuple[str | None, ...]:
    flowing = [context.gradient(index) or "" for index in range(2)]
    rule = as_str(context.attribute("update_rule"))
    used = [index < 4 or index in READS[rule] for index in range(6)]
    reads = [context.input(index) if used[index] else "" for index in range(6)]
    given = context.emit(
        "LinearAttentionGrad",
        (*reads, *flowing),
        given_attributes(context, LINEAR_ATTENTION_ATTRIBUTES),
        domain=WEFT_DOMAIN,
        outputs=6 if reads[5] else 5 if reads[4] else 4,
    )
    padded = (*given, None, None)
    return tuple(padded[place] if name else None for place, name in enumerate(reads))[: len(context.node.inputs)]


def _linear_attention_flops(_node: Node, reads: Sequence[TensorType | None], writes: Sequence[TensorType]) -> int:
    query, state = reads[0], writes[1]
    assert query is not None
    return 2 * query.static_shape[1] * state.size * 4


LINEAR_ATTENTION = OpSchema(
    op_type="LinearAttention",
    inputs=(
        required("query", FLOATS),
        required("key", FLOATS),
        required("value", FLOATS),
        optional("past_state", FLOATS),
        optional("decay", FLOATS),
        optional("beta", FLOATS),
    ),
    outputs=(required("output", FLOATS), required("present_state", FLOATS)),
    infer=_infer_linear_attention,
    gradient=_linear_attention_gradient,
    attributes=LINEAR_ATTENTION_ATTRIBUTES,
    flops=_linear_attention_flops,
    product=True,
)
"""LinearAttention: each head keeps a matrix that keys and values are written into, token by token, and queries read.

With k, v, g (decay), b (beta) of a token and the state S: S' = e^g S; linear and gated write k v, delta and gated_delta
write b k (v - S'^T k); the output is scale * q^T S. `linear` and `delta` have no decay, `linear` and `gated` no beta:
where they are given all the same they are not read. Computed in float32 at least. `chunk_size` is how many
tokens' states a gradient holds at once; results do not depend on it. Yang et al. 2024, "Gated delta networks".
"""


def _infer_linear_attention_grad(context: InferContext) -> tuple[TensorType, ...]:
    empty = TensorType(context.input(0).dtype, (0,))
    return tuple(context.optional_input(index) or empty for index in range(6))


LINEAR_ATTENTION_GRAD = OpSchema(
    op_type="LinearAttentionGrad",
    inputs=(
        required("query", FLOATS),
        required("key", FLOATS),
        required("value", FLOATS),
        optional("past_state", FLOATS),
        optional("decay", FLOATS),
        optional("beta", FLOATS),
        optional("output_gradient", FLOATS),
        optional("present_state_gradient", FLOATS),
    ),
    outputs=(
        required("query_gradient", FLOATS),
        required("key_gradient", FLOATS),
        required("value_gradient", FLOATS),
        required("past_state_gradient", FLOATS),
        optional("decay_gradient", FLOATS),
        optional("beta_gradient", FLOATS),
    ),
    infer=_infer_linear_attention_grad,
    attributes=LINEAR_ATTENTION_ATTRIBUTES,
    domain=WEFT_DOMAIN,
)
"""LinearAttentionGrad(LinearAttention's inputs, gradients of its outputs): the gradients of the inputs.

States are computed again, a chunk at a time. For an input that is left out an empty vector is given.
"""


CAUSAL_CONV_WITH_STATE_ATTRIBUTES = {"activation": Attribute(str, default="none")}


def _infer_causal_conv_with_state(context: InferContext) -> tuple[TensorType, ...]:
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


def _causal_conv_with_state_gradient(context: GradientContext) -> tuple[str | None, ...]:
    flowing = [context.gradient(index) or "" for index in range(2)]
    reads = [context.input(index) for index in range(4)]
    given = context.emit(
        "CausalConvWithStateGrad",
        (*reads, *flowing),
        given_attributes(context, CAUSAL_CONV_WITH_STATE_ATTRIBUTES),
        domain=WEFT_DOMAIN,
        outputs=4,
    )
    return tuple(name if reads[place] else None for place, name in enumerate(given))[: len(context.node.inputs)]


def _causal_conv_with_state_flops(_node: Node, reads: Sequence[TensorType | None], writes: Sequence[TensorType]) -> int:
    weight = reads[1]
    assert weight is not None
    return writes[0].size * (2 * weight.static_shape[2] + 3)


CAUSAL_CONV_WITH_STATE = OpSchema(
    op_type="CausalConvWithState",
    inputs=(
        required("input", FLOATS),
        required("weight", FLOATS),
        optional("bias", FLOATS),
        optional("past_state", FLOATS),
    ),
    outputs=(required("output", FLOATS), required("present_state", FLOATS)),
    infer=_infer_causal_conv_with_state,
    gradient=_causal_conv_with_state_gradient,
    attributes=CAUSAL_CONV_WITH_STATE_ATTRIBUTES,
    flops=_causal_conv_with_state_flops,
    product=True,
)
"""CausalConvWithState: each channel with a kernel of its own, over what came before and now; then x * sigmoid(x).

The state is the last elements before the input, one fewer than the kernel has; zeros where it is left out.
"""


def _infer_causal_conv_with_state_grad(context: InferContext) -> tuple[TensorType, ...]:
    data, weight = context.input(0), context.input(1)
    width = weight.shape[2]
    assert isinstance(width, int)
    bias = TensorType(weight.dtype, weight.shape[:1])
    return data, weight, bias, TensorType(data.dtype, (*data.shape[:2], width - 1))


CAUSAL_CONV_WITH_STATE_GRAD = OpSchema(
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
    infer=_infer_causal_conv_with_state_grad,
    attributes=CAUSAL_CONV_WITH_STATE_ATTRIBUTES,
    domain=WEFT_DOMAIN,
)
"""CausalConvWithStateGrad(its inputs, gradients of its outputs): the gradients of the inputs.

Those of a bias and of a state that are left out are given all the same, as if they were zeros.
"""


ROTARY_EMBEDDING_ATTRIBUTES = {
    "interleaved": Attribute(int, default=0),
    "num_heads": Attribute(int),
    "rotary_embedding_dim": Attribute(int, default=0),
}


def _infer_rotary_embedding(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 0, 1, 2)
    data, cos, sin, places = context.input(0), context.input(1), context.input(2), context.optional_input(3)
    size, length = _rotary_embedding_head_size(context, data), data.shape[-2] if data.rank == 4 else data.shape[1]
    turned = as_int(context.attribute("rotary_embedding_dim")) or size
    if not isinstance(turned, int) or not isinstance(size, int) or turned % 2 or not 0 < turned <= size:
        raise context.shape_error(f"{turned} of {size} elements of a head cannot be turned in pairs")
    if cos.shape != sin.shape:
        raise context.shape_error(f"cos_cache {cos} and sin_cache {sin} are of different shapes")
    tokens = (data.shape[0], length)
    if places is not None and (places.rank != 2 or not _by_token(places.shape, tokens)):
        raise context.shape_error(f"position_ids {places} must be {list(tokens)}, of {data}")
    if cos.rank != (3 if places is None else 2) or not agree(cos.shape[-1], turned // 2):
        raise context.shape_error(f"caches {cos} must be {'tokens' if places is None else 'places'} by {turned // 2}")
    if places is None and not _by_token(cos.shape[:2], tokens):
        raise context.shape_error(f"caches {cos} must have an angle for each token of {data}")
    return (data,)


def _by_token(shape: Sequence[Dim], tokens: tuple[Dim, Dim]) -> bool:
    """Whether there is one for each token, or one for each of a sample's tokens that all samples share."""
    return (shape[0] == 1 or agree(shape[0], tokens[0])) and agree(shape[1], tokens[1])


def _rotary_embedding_head_size(context: InferContext, data: TensorType) -> Dim:
    if data.rank == 4:
        return data.shape[3]
    heads = context.attribute("num_heads")
    if data.rank != 3 or heads is None or as_int(heads) < 1:
        raise context.shape_error(f"the input has 4 dimensions, or 3 and num_heads of 1 or more, got {data}")
    size = quotient((data.shape[2],), (as_int(heads),))
    if size is None:
        raise context.shape_error(f"the last dimension of {data} does not fall into {as_int(heads)} heads")
    return size


def _rotary_embedding_gradient(context: GradientContext) -> tuple[str | None, ...]:
    """The data's is turned back: a rotation's transpose has the other sine."""
    gradient, (data, cos, sin, *places) = incoming(context), context.node.inputs
    attributes = given_attributes(context, ROTARY_EMBEDDING_ATTRIBUTES)
    back = context.emit("RotaryEmbedding", (gradient, cos, apply(context, "Neg", sin), *places), attributes)[0]
    caches: tuple[str | None, ...] = (None, None)
    if context.needs(1) or context.needs(2):
        inputs = (gradient, data, cos, *places)
        caches = context.emit("RotaryEmbeddingGrad", inputs, attributes, domain=WEFT_DOMAIN, outputs=2)
    return (back, *caches, None)[: len(context.node.inputs)]


def _rotary_embedding_flops(_node: Node, reads: Sequence[TensorType | None], _writes: Sequence[TensorType]) -> int:
    data = reads[0]
    assert data is not None
    return 3 * data.size


ROTARY_EMBEDDING = OpSchema(
    op_type="RotaryEmbedding",
    inputs=(
        required("X", FLOATS),
        setting(required("cos_cache", FLOATS)),
        setting(required("sin_cache", FLOATS)),
        optional("position_ids", INDICES),
    ),
    outputs=(required("Y", FLOATS),),
    infer=_infer_rotary_embedding,
    gradient=_rotary_embedding_gradient,
    attributes=ROTARY_EMBEDDING_ATTRIBUTES,
    flops=_rotary_embedding_flops,
    follows=True,
)
"""RotaryEmbedding: pairs of a head's elements turned by the angles of their token's place.

A pair (a, b) becomes (a cos - b sin, a sin + b cos); it is made of the halves of what is turned, or of neighbours where
`interleaved`. Elements from `rotary_embedding_dim` on stay as they are. Places, or angles, that are given for one
sample hold for all, which ONNX does not ask for. Su et al. 2021.
"""


def _infer_rotary_embedding_grad(context: InferContext) -> tuple[TensorType, ...]:
    return context.input(2), context.input(2)


ROTARY_EMBEDDING_GRAD = OpSchema(
    op_type="RotaryEmbeddingGrad",
    inputs=(
        required("gradient", FLOATS),
        required("X", FLOATS),
        required("cos_cache", FLOATS),
        optional("position_ids", INDICES),
    ),
    outputs=(required("cos_cache_gradient", FLOATS), required("sin_cache_gradient", FLOATS)),
    infer=_infer_rotary_embedding_grad,
    attributes=ROTARY_EMBEDDING_ATTRIBUTES,
    domain=WEFT_DOMAIN,
)
"""RotaryEmbeddingGrad(gradient, X, cos_cache, position_ids): the gradients of cos_cache and sin_cache."""
