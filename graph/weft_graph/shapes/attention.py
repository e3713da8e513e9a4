"""Attention's types: heads, lengths and sizes of queries, keys and values, and whether masks and caches fit them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from weft_graph.attributes import as_float, as_int
from weft_graph.dimensions import Dim, agree, product, quotient, settled, total
from weft_graph.ir import AttributeValue
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.schema import InferContext
from weft_graph.shapes.broadcasting import broadcast, check_same_dtype
from weft_graph.types import Shape, TensorType

Get = Callable[[str], AttributeValue | None]


@dataclass(frozen=True, slots=True)
class AttentionDims:
    """`keys` counts those of the cache too; `past` is the cache's part of them."""

    batch: Dim
    heads: Dim
    kv_heads: Dim
    queries: Dim
    past: Dim
    keys: Dim
    size: Dim
    value_size: Dim

    @property
    def scores(self) -> Shape:
        return self.batch, self.heads, self.queries, self.keys


def attention_dims(context: InferContext, *, cached: bool = True) -> AttentionDims:
    """Of a node whose inputs are Q, K, V, attn_mask, past_key, past_value and nonpad_kv_seqlen, as far as it has them.

    Where it is not `cached`, only the first three are such. Raises ShapeError or DTypeError, which name the node and
    say what does not fit.
    """
    check_same_dtype(context, 0, 1)
    q, k, v = (context.input(index) for index in range(3))
    if {q.rank, k.rank, v.rank} not in ({3}, {4}):
        raise context.shape_error(f"Q, K and V are all of 3 or all of 4 dimensions, got {q}, {k} and {v}")
    heads, kv_heads = _head_counts(context)
    batch, queries, size = _as_heads(context, q, heads)
    k_batch, new, k_size = _as_heads(context, k, kv_heads)
    v_batch, v_new, value_size = _as_heads(context, v, kv_heads)
    if not (agree(batch, k_batch) and agree(batch, v_batch) and agree(new, v_new) and agree(size, k_size)):
        raise context.shape_error(f"batch, lengths or head sizes of {q}, {k} and {v} do not fit each other")
    if size == 0:
        raise context.shape_error(f"heads of {q} have no elements")
    batch = settled(settled(batch, k_batch), v_batch)
    past = _past(context, (batch, kv_heads), settled(size, k_size), value_size) if cached else 0
    return AttentionDims(
        batch, heads, kv_heads, queries, past, total((past, settled(new, v_new))), settled(size, k_size), value_size
    )


def check_attending(context: InferContext, dims: AttentionDims) -> None:
    """Raises ShapeError or DTypeError where the mask, the counts of keys or a setting does not fit."""
    mask, counts = context.optional_input(3), context.optional_input(6)
    if mask is not None:
        rows = (*dims.scores[:-1], 1)
        found = broadcast((*mask.shape[:-1], 1), rows)
        length = mask.shape[-1] if mask.rank else 0
        too_long = isinstance(length, int) and isinstance(dims.keys, int) and length > dims.keys
        fits = found is not None and len(found) == 4 and all(agree(a, b) for a, b in zip(found, rows, strict=True))
        if mask.rank == 0 or not fits or too_long:
            raise context.shape_error(f"attn_mask {mask} does not broadcast to {list(dims.scores)}")
    if counts is not None:
        if context.optional_input(4) is not None:
            raise context.shape_error("nonpad_kv_seqlen is for caches outside: it excludes past_key and past_value")
        if counts.rank != 1 or not agree(counts.shape[0], dims.batch):
            raise context.shape_error(f"nonpad_kv_seqlen is one number a sample of {dims.batch}, got {counts}")
    _check_settings(context)


def grouped_scores(node_reads: tuple[TensorType | None, ...], writes: TensorType, heads: int) -> int:
    """Products of a query and a key: all dimensions being numbers, of an Attention's inputs and its output."""
    keys, past = node_reads[1], node_reads[4] if len(node_reads) > 4 else None
    assert keys is not None
    length = keys.static_shape[-2] + (0 if past is None else past.static_shape[2])
    queries = math.prod(writes.static_shape[:-1]) * (1 if writes.rank == 4 else heads)
    return queries * length


def head_count(get: Get, shape: Shape, name: str) -> Dim:
    """Heads of an input: its second dimension, or what the attribute says where heads are joined."""
    return shape[1] if len(shape) == 4 else as_int(get(name))


def _head_counts(context: InferContext) -> tuple[Dim, Dim]:
    q, k, v = (context.input(index) for index in range(3))
    given = [context.attribute(name) for name in ("q_num_heads", "kv_num_heads")]
    if q.rank == 3 and None in given:
        raise context.shape_error("inputs of 3 dimensions need q_num_heads and kv_num_heads")
    heads, kv_heads = (
        head_count(context.attribute, type_.shape, name) for type_, name in ((q, "q_num_heads"), (k, "kv_num_heads"))
    )
    if q.rank == 4:
        for asked, found in zip(given, (heads, kv_heads), strict=True):
            if asked is not None and not agree(as_int(asked), found):
                raise context.shape_error(f"{as_int(asked)} heads are asked for, and {q} and {k} have others")
        if not agree(k.shape[1], v.shape[1]):
            raise context.shape_error(f"{k} and {v} have different counts of heads")
    counts = [count for count in (heads, kv_heads) if isinstance(count, int)]
    if min(counts, default=1) < 1 or (len(counts) == 2 and counts[0] % counts[1]):
        raise context.shape_error(f"{heads} heads of queries are no multiple of {kv_heads} heads of keys")
    return heads, kv_heads


def _as_heads(context: InferContext, type_: TensorType, heads: Dim) -> tuple[Dim, Dim, Dim]:
    """(batch, length, head size)."""
    if type_.rank == 4:
        return type_.shape[0], type_.shape[2], type_.shape[3]
    size = quotient((type_.shape[2],), (heads,))
    if size is None:
        raise context.shape_error(f"the last dimension of {type_} does not fall into {heads} heads")
    return type_.shape[0], type_.shape[1], size


def _past(context: InferContext, lead: tuple[Dim, Dim], size: Dim, value_size: Dim) -> Dim:
    key, value = context.optional_input(4), context.optional_input(5)
    if key is None and value is None:
        return 0
    if key is None or value is None:
        raise context.shape_error("past_key and past_value are given together or not at all")
    check_same_dtype(context, 1, 4)
    check_same_dtype(context, 2, 5)
    length = key.shape[2] if key.rank == 4 else 0
    for name, type_, last in (("past_key", key, size), ("past_value", value, value_size)):
        wanted = (*lead, length, last)
        if type_.rank != 4 or not all(agree(a, b) for a, b in zip(type_.shape, wanted, strict=True)):
            raise context.shape_error(f"{name} {type_} must be {list(wanted)}")
    return length


def _check_settings(context: InferContext) -> None:
    scale = context.attribute("scale")
    if scale is not None and not 0 <= as_float(scale) < math.inf:
        raise context.shape_error(f"scale {as_float(scale)} must be finite and not below 0")
    if not 0 <= as_float(context.attribute("softcap")) < math.inf:
        raise context.shape_error(f"softcap {context.attribute('softcap')} must be finite and not below 0")
    if as_int(context.attribute("qk_matmul_output_mode")) not in range(4):
        raise context.shape_error(
            f"qk_matmul_output_mode {context.attribute('qk_matmul_output_mode')} is none of 0 to 3"
        )
    for name in ("left_window_size", "right_window_size"):
        if as_int(context.attribute(name)) < -1:
            raise context.shape_error(f"{name} {context.attribute(name)} must be -1 or more")
    check_precision(context)


def check_precision(context: InferContext) -> None:
    """Raises DTypeError where `softmax_precision` is no float type."""
    precision = context.attribute("softmax_precision")
    dtype = None if precision is None else DTYPE_OF_NUMBER.get(as_int(precision))
    if precision is not None and (dtype is None or not dtype.is_float):
        raise context.dtype_error(f"softmax_precision {precision} is no float type: 1, 10, 11 or 16")


def joined_heads(rank: int, batch: Dim, heads: Dim, length: Dim, size: Dim) -> Shape:
    """The shape of an input or output, whose heads are apart in 4 dimensions and joined in 3."""
    return (batch, heads, length, size) if rank == 4 else (batch, length, product((heads, size)))
