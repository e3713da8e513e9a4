"""LinearAttention: each head keeps a matrix that keys and values are written into, token by token, and queries read.

With k, v, g (decay), b (beta) of a token and the state S: S' = e^g S; linear and gated write k v, delta and gated_delta
write b k (v - S'^T k); the output is scale * q^T S. `linear` and `delta` have no decay, `linear` and `gated` no beta:
where they are given all the same they are not read. Computed in float32 at least. `chunk_size` is how many
tokens' states a gradient holds at once; results do not depend on it. Yang et al. 2024, "Gated delta networks".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft_graph.attributes import as_float, as_int, as_str
from weft_graph.dimensions.dims import Dim, agree, product, quotient
from weft_graph.formals import FLOATS, optional, required
from weft_graph.ir import WEFT_DOMAIN, Node
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.composing import given_attributes
from weft_graph.types import TensorType

ATTRIBUTES = {
    "chunk_size": Attribute(int, default=64),
    "kv_num_heads": Attribute(int, required=True),
    "q_num_heads": Attribute(int, required=True),
    "scale": Attribute(float, default=0.0),
    "update_rule": Attribute(str, default="gated_delta"),
}
READS = {"linear": (), "gated": (4,), "delta": (5,), "gated_delta": (4, 5)}
"""The optional inputs that each rule reads: decay and beta."""


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 0, 1, 2)
    heads, kv_heads = as_int(context.attribute("q_num_heads")), as_int(context.attribute("kv_num_heads"))
    if kv_heads < 1 or heads < 1 or heads % kv_heads:
        raise context.shape_error(f"{heads} heads of queries are no multiple of {kv_heads} heads of keys")
    sizes = [_head_size(context, index, count) for index, count in enumerate((heads, kv_heads, kv_heads))]
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


def _head_size(context: InferContext, index: int, heads: int) -> Dim:
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


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    flowing = [context.gradient(index) or "" for index in range(2)]
    rule = as_str(context.attribute("update_rule"))
    used = [index < 4 or index in READS[rule] for index in range(6)]
    reads = [context.input(index) if used[index] else "" for index in range(6)]
    given = context.emit(
        "LinearAttentionGrad",
        (*reads, *flowing),
        given_attributes(context, ATTRIBUTES),
        domain=WEFT_DOMAIN,
        outputs=6 if reads[5] else 5 if reads[4] else 4,
    )
    padded = (*given, None, None)
    return tuple(padded[place] if name else None for place, name in enumerate(reads))[: len(context.node.inputs)]


def _flops(_node: Node, reads: Sequence[TensorType | None], writes: Sequence[TensorType]) -> int:
    query, state = reads[0], writes[1]
    assert query is not None
    return 2 * query.static_shape[1] * state.size * 4


SCHEMA = OpSchema(
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
    infer=_infer,
    gradient=_gradient,
    attributes=ATTRIBUTES,
    flops=_flops,
)
