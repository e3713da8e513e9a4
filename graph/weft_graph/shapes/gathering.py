"""What operators that pick rows by index have in common: their type, known indices, the gradient of what they read."""

from __future__ import annotations

from collections.abc import Mapping

from weft_graph.dimensions.dims import Dim, agree_all
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import GradientContext, InferContext
from weft_graph.shapes.flow import incoming
from weft_graph.types import Shape, TensorType


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


def check_beside(context: InferContext, axis: int) -> None:
    """Raises ShapeError unless input 1 has the rank of input 0, and is no longer than it beside dimension `axis`."""
    data, indices = context.input(0), context.input(1)
    if indices.rank != data.rank:
        raise context.shape_error(f"indices {indices} must have the rank of the data {data}")
    for place, (dim, size) in enumerate(zip(data.shape, indices.shape, strict=True)):
        if place != axis and isinstance(dim, int) and isinstance(size, int) and size > dim:
            raise context.shape_error(f"indices {indices} are longer than the data {data} along dimension {place}")


def infer_tuples(context: InferContext, batch_dims: int = 0) -> tuple[Shape, Shape]:
    """(the shape of all index tuples of input 1, the shape of the slice of input 0 that each names).

    A tuple names dimensions from `batch_dims` on; those before are the same in both inputs. Raises ShapeError, which
    names the node, where they do not fit.
    """
    data, indices = context.input(0), context.input(1)
    if not 0 <= batch_dims < min(data.rank, indices.rank):
        raise context.shape_error(f"batch_dims {batch_dims} must be below the ranks of {data} and {indices}")
    count = indices.shape[-1]
    if not isinstance(count, int):
        raise context.shape_error(f"it must be known before a step how many dimensions an index of {indices} names")
    if not 1 <= count <= data.rank - batch_dims:
        raise context.shape_error(
            f"{count} numbers an index do not name a slice of {data} after {batch_dims} dimensions"
        )
    if not agree_all(data.shape[:batch_dims], indices.shape[:batch_dims]):
        raise context.shape_error(f"the first {batch_dims} dimensions of {data} and {indices} differ")
    _check_known_tuples(context, data.shape[batch_dims : batch_dims + count])
    return indices.shape[:-1], data.shape[batch_dims + count :]


def _check_known_tuples(context: InferContext, dims: Shape) -> None:
    known = context.constant(1)
    for place, dim in enumerate(dims if known is not None else ()):
        numbers = [] if known is None or not isinstance(dim, int) else known[..., place].reshape(-1).tolist()
        outside = [index for index in numbers if not -_size(dim) <= index < _size(dim)]
        if outside:
            raise context.shape_error(f"index {outside[0]} is outside [{-_size(dim)}, {dim}) of dimension {place}")


def _size(dim: Dim) -> int:
    return dim if isinstance(dim, int) else 0
