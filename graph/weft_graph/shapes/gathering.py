"""What operators that pick rows by index have in common: their type, known indices, the gradient of what they read."""

from __future__ import annotations

from collections.abc import Mapping

from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import GradientContext, InferContext
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def infer_gathered(context: InferContext, axis: int) -> TensorType:
    """Input 0 with the shape of input 1, the indices, in the place of dimension `axis`."""
    data, indices = context.input(0), context.input(1)
    return TensorType(data.dtype, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))


def check_known_indices(context: InferContext, axis: int, low: int, allowed: int | None = None) -> None:
    """Raises ShapeError where the indices and the dimension are known and an index is outside [low, dimension).

    `allowed` is an index that may be anything.
    """
    known, dim = context.constant(1), context.input(0).shape[axis]
    if known is None or not isinstance(dim, int):
        return
    outside = [index for index in known.reshape(-1).tolist() if not low <= index < dim and index != allowed]
    if outside:
        raise context.shape_error(f"index {outside[0]} is outside [{low}, {dim})")


def gathering_gradient(
    context: GradientContext, attributes: Mapping[str, AttributeValue], *, wraps: bool
) -> tuple[str | None, str | None]:
    """GatherGrad of the data, with these attributes; nothing of the indices, which may be below 0 if `wraps`."""
    attributes = {**attributes, "wraps": int(wraps)}
    data, indices = context.input(0), context.input(1)
    (gradient,) = context.emit("GatherGrad", (incoming(context), data, indices), attributes, domain=WEFT_DOMAIN)
    return gradient, None
