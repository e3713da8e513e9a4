"""TensorScatter: a cache with new parts of sequences written into it, from each sample's own place on.

`linear` writes within the cache's length, `circular` goes on at its beginning. Caches of strings are not taken.
"""

from __future__ import annotations

from weft_graph.attributes import as_str
from weft_graph.dimensions.dims import agree
from weft_graph.formals import ANY, INT64, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import infer_axis
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType

ATTRIBUTES = {"axis": Attribute(int, default=-2), "mode": Attribute(str, default="linear")}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 0, 1)
    cache, update, places = context.input(0), context.input(1), context.optional_input(2)
    axis = infer_axis(context, cache.rank)
    if axis == 0:
        raise context.shape_error(f"axis 0 of {cache} is the samples'; sequences have another one")
    if as_str(context.attribute("mode")) not in {"linear", "circular"}:
        raise context.shape_error(f"mode {context.attribute('mode')!r} is none of linear, circular")
    others = [(a, b) for place, (a, b) in enumerate(zip(cache.shape, update.shape, strict=False)) if place != axis]
    if update.rank != cache.rank or not all(agree(a, b) for a, b in others):
        raise context.shape_error(f"update {update} and {cache} differ in more than dimension {axis}")
    new, length = update.shape[axis], cache.shape[axis]
    if isinstance(new, int) and isinstance(length, int) and new > length:
        raise context.shape_error(f"update {update} is longer than {cache}")
    if places is not None and (places.rank != 1 or not agree(places.shape[0], cache.shape[0])):
        raise context.shape_error(f"write_indices {places} are not one a sample of {cache}")
    return (cache,)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), *context.node.inputs[1:])
    attributes = given_attributes(context, ATTRIBUTES)
    of_cache, of_update = context.emit("TensorScatterGrad", inputs, attributes, domain=WEFT_DOMAIN, outputs=2)
    return (of_cache, of_update, None)[: len(context.node.inputs)]


SCHEMA = OpSchema(
    op_type="TensorScatter",
    inputs=(required("past_cache", ANY), required("update", ANY), optional("write_indices", INT64)),
    outputs=(required("present_cache", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes=ATTRIBUTES,
    flops=moved,
)
