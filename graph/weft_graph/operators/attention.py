"""Attention, opset 25: softmax(Q K' * scale + bias) V for each head.

Heads of keys and values may be shared by groups of queries' heads. The bias is of a mask, of causality, of a window
and of the counts of keys that are no padding; a query that may attend to nothing gives zeros. A mask shorter than the
keys hides the rest, also where its last dimension is 1. float16 and bfloat16 are computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.attributes import as_int
from weft_graph.formals import BOOLEANS, FLOATS, INT64, NUMBERS, optional, required, setting
from weft_graph.ir import WEFT_DOMAIN, Node
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema, Setting
from weft_graph.shapes.attention import attention_dims, check_attending, grouped_scores, joined_heads
from weft_graph.shapes.composing import given_attributes
from weft_graph.types import TensorType

ATTRIBUTES = {
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


def _infer(context: InferContext) -> tuple[TensorType, ...]:
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


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    reads = [context.input(index) for index in range(7)]
    flowing = [context.gradient(index) or "" for index in range(4)]
    mask = bool(reads[3]) and context.needs(3)
    past = bool(reads[4]) and (context.needs(4) or context.needs(5))
    given = context.emit(
        "AttentionGrad",
        (*reads, *flowing),
        given_attributes(context, ATTRIBUTES),
        domain=WEFT_DOMAIN,
        outputs=6 if mask else 5 if past else 3,
    )
    q, k, v, past_key, past_value, of_mask = (*given, None, None, None)[:6]
    gradients = (q, k, v, of_mask, past_key if past else None, past_value if past else None, None)
    return gradients[: len(context.node.inputs)]


def _flops(node: Node, reads: Sequence[TensorType | None], writes: Sequence[TensorType]) -> int:
    q = reads[0]
    assert q is not None
    heads = as_int(node.attributes.get("q_num_heads", 1))
    sizes = q.static_shape[-1] + writes[0].static_shape[-1]
    width = sizes if q.rank == 4 else sizes // heads
    return grouped_scores(tuple(reads), writes[0], heads) * (2 * width + 5)


SCHEMA = OpSchema(
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
    infer=_infer,
    gradient=_gradient,
    attributes=ATTRIBUTES,
    flops=_flops,
)
