"""Multidirectional broadcasting as ONNX defines it, and the sum that undoes it in a gradient."""

from __future__ import annotations

from weft_graph.dimensions.dims import Dim, agree, is_unknown, unknown_of
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import GradientContext, InferContext
from weft_graph.types import DType, Shape, TensorType


def broadcast(*shapes: Shape) -> Shape | None:
    """The shape that all broadcast to, or None where two dimensions differ and neither is 1.

    A name broadcasts with itself and with 1 only: nothing says that `batch` will be 32. A dimension that only a step's
    values decide gives way to what is known: it is equal, or 1.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    dims: list[Dim] = []
    for column in zip(*padded, strict=True):
        distinct = {dim for dim in column if dim != 1}
        known = {dim for dim in distinct if not is_unknown(dim)}
        if len(known) > 1:
            return None
        dims.append(known.pop() if known else _either(distinct))
    return tuple(dims)


def broadcasts_to(shape: Shape, target: Shape) -> bool:
    """Whether `shape` may broadcast to `target` in a step, which does not grow by it."""
    lead = len(target) - len(shape)
    return lead >= 0 and all(dim == 1 or agree(dim, wide) for dim, wide in zip(shape, target[lead:], strict=True))


def _either(distinct: set[Dim]) -> Dim:
    """Of dimensions that only values decide, each may be 1: what they broadcast to is none of them for certain."""
    if len(distinct) < 2:
        return distinct.pop() if distinct else 1
    return unknown_of("broadcast", *sorted(map(str, distinct)))


def infer_broadcast(context: InferContext, *indices: int) -> Shape:
    """The shape that the inputs broadcast to. Raises ShapeError with every input's type."""
    types = [context.input(index) for index in indices]
    shape = broadcast(*(type_.shape for type_ in types))
    if shape is None:
        raise context.shape_error(f"shapes do not broadcast: {' and '.join(map(str, types))}")
    return shape


def check_same_dtype(context: InferContext, *indices: int) -> None:
    """Raises DTypeError, with every input's type, unless all inputs have one element type."""
    types = [context.input(index) for index in indices]
    if len({type_.dtype for type_ in types}) > 1:
        raise context.dtype_error(f"inputs must have one element type, got {' and '.join(map(str, types))}")


def infer_unary(context: InferContext) -> tuple[TensorType, ...]:
    """Output like input 0."""
    return (context.input(0),)


def infer_binary(context: InferContext) -> tuple[TensorType, ...]:
    """Output of inputs 0 and 1, broadcast, of their one element type."""
    check_same_dtype(context, 0, 1)
    return (TensorType(context.input(0).dtype, infer_broadcast(context, 0, 1)),)


def infer_variadic(context: InferContext) -> tuple[TensorType, ...]:
    """Output of all inputs, broadcast, of their one element type."""
    indices = range(len(context.node.inputs))
    check_same_dtype(context, *indices)
    return (TensorType(context.input(0).dtype, infer_broadcast(context, *indices)),)


def infer_comparison(context: InferContext) -> tuple[TensorType, ...]:
    """A boolean for each element of inputs 0 and 1, broadcast, which have one element type."""
    check_same_dtype(context, 0, 1)
    return (TensorType(DType.BOOL, infer_broadcast(context, 0, 1)),)


def sum_to(context: GradientContext, gradient: str, like: str) -> str:
    """The name of `gradient` summed over the dimensions along which `like` was broadcast."""
    if context.type_of(gradient).shape == context.type_of(like).shape:
        return gradient
    return context.emit("SumTo", (gradient, like), domain=WEFT_DOMAIN)[0]
