"""RotaryEmbedding: pairs of a head's elements turned by the angles of their token's place.

A pair (a, b) becomes (a cos - b sin, a sin + b cos); it is made of the halves of what is turned, or of neighbours where
`interleaved`. Elements from `rotary_embedding_dim` on stay as they are. Places, or angles, that are given for one
sample hold for all, which ONNX does not ask for. Su et al. 2021.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.attributes import as_int
from weft_graph.dimensions.dims import Dim, agree, quotient
from weft_graph.formals import FLOATS, INDICES, optional, required, setting
from weft_graph.ir import WEFT_DOMAIN, Node
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.composing import apply, given_attributes
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType

ATTRIBUTES = {
    "interleaved": Attribute(int, default=0),
    "num_heads": Attribute(int),
    "rotary_embedding_dim": Attribute(int, default=0),
}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 0, 1, 2)
    data, cos, sin, places = context.input(0), context.input(1), context.input(2), context.optional_input(3)
    size, length = _head_size(context, data), data.shape[-2] if data.rank == 4 else data.shape[1]
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


def _head_size(context: InferContext, data: TensorType) -> Dim:
    if data.rank == 4:
        return data.shape[3]
    heads = context.attribute("num_heads")
    if data.rank != 3 or heads is None or as_int(heads) < 1:
        raise context.shape_error(f"the input has 4 dimensions, or 3 and num_heads of 1 or more, got {data}")
    size = quotient((data.shape[2],), (as_int(heads),))
    if size is None:
        raise context.shape_error(f"the last dimension of {data} does not fall into {as_int(heads)} heads")
    return size


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    """The data's is turned back: a rotation's transpose has the other sine."""
    gradient, (data, cos, sin, *places) = incoming(context), context.node.inputs
    attributes = given_attributes(context, ATTRIBUTES)
    back = context.emit("RotaryEmbedding", (gradient, cos, apply(context, "Neg", sin), *places), attributes)[0]
    caches: tuple[str | None, ...] = (None, None)
    if context.needs(1) or context.needs(2):
        inputs = (gradient, data, cos, *places)
        caches = context.emit("RotaryEmbeddingGrad", inputs, attributes, domain=WEFT_DOMAIN, outputs=2)
    return (back, *caches, None)[: len(context.node.inputs)]


def _flops(_node: Node, reads: Sequence[TensorType | None], _writes: Sequence[TensorType]) -> int:
    data = reads[0]
    assert data is not None
    return 3 * data.size


SCHEMA = OpSchema(
    op_type="RotaryEmbedding",
    inputs=(
        required("X", FLOATS),
        setting(required("cos_cache", FLOATS)),
        setting(required("sin_cache", FLOATS)),
        optional("position_ids", INDICES),
    ),
    outputs=(required("Y", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes=ATTRIBUTES,
    flops=_flops,
)
