"""The shapes of matrix products and of convolutions."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.dimensions.dims import agree, agree_all, is_unknown, product, quotient
from weft_graph.schema import InferContext
from weft_graph.shapes.broadcasting import broadcast
from weft_graph.shapes.open_windows import infer_counts
from weft_graph.types import Shape, TensorType


def infer_product(context: InferContext, left: TensorType, right: TensorType) -> Shape:
    """The shape of the product of matrices, or of stacks of them that broadcast. Raises ShapeError with both types."""
    if left.rank == 0 or right.rank == 0:
        raise context.shape_error(f"a matrix product takes no zero-dim tensor: {left} and {right}")
    inner = left.shape[-1], right.shape[-2 if right.rank > 1 else 0]
    if not agree(*inner):
        raise context.shape_error(f"inner dimensions differ: {inner[0]} of {left} and {inner[1]} of {right}")
    stack = broadcast(left.shape[:-2], right.shape[:-2])
    if stack is None:
        raise context.shape_error(f"stacks of matrices do not broadcast: {left} and {right}")
    rows = left.shape[-2:-1]
    columns = right.shape[-1:] if right.rank > 1 else ()
    return (*stack, *rows, *columns)


def infer_convolution(context: InferContext, data: TensorType, weights: TensorType, bias: TensorType | None) -> Shape:
    """The shape of a convolution of (batch, channels, spatial ...). Raises ShapeError where something does not fit."""
    group = as_int(context.attribute("group"))
    if weights.rank != data.rank or data.rank < 3:
        raise context.shape_error(f"input {data} and weights {weights} must have one rank, at least 3")
    channels, features = weights.shape[1], weights.shape[0]
    if group < 1 or (quotient((features,), (group,)) is None and not is_unknown(features)):
        raise context.shape_error(f"{features} features of weights {weights} do not fall into {group} groups")
    taken = product((channels, group))
    if not agree(data.shape[1], taken):
        raise context.shape_error(
            f"input {data} has {data.shape[1]} channels, weights {weights} in {group} groups take {taken}"
        )
    if bias is not None and not agree_all(bias.shape, (features,)):
        raise context.shape_error(f"bias {bias} must have one number for each of the {features} features")
    return (data.shape[0], features, *infer_counts(context, data, weights.shape[2:]))
