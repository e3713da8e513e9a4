"""Lists of whole numbers that a node has as an attribute, in older forms, or as an input."""

from __future__ import annotations

from weft_graph.attributes import as_ints
from weft_graph.dimensions.amounts import Amount
from weft_graph.schema import InferContext
from weft_graph.types import Shape


def infer_amounts(context: InferContext, index: int, name: str) -> tuple[Amount, ...] | None:
    """The attribute `name`, or what is known of the numbers of input `index`; None where there is neither.

    Raises ShapeError, which names the node, where there are both, or where it is not known how many numbers there are.
    """
    given = context.attribute(name) if name in context.node.attributes else None
    type_ = context.optional_input(index)
    if given is not None and type_ is not None:
        raise context.shape_error(f"{name} is an input and an attribute; it must be one of them")
    if given is not None:
        return as_ints(given)
    if type_ is None:
        return None
    numbers = context.amounts(index)
    if type_.rank > 1 or numbers is None:
        raise context.shape_error(f"{name} must be a list of numbers whose length is known before a step, got {type_}")
    return numbers


def infer_required_amounts(context: InferContext, index: int, name: str) -> tuple[Amount, ...]:
    """The same, where a node must have one or the other."""
    numbers = infer_amounts(context, index, name)
    if numbers is None:
        raise context.shape_error(f"{name} is missing")
    return numbers


def infer_shape(context: InferContext, index: int, name: str) -> Shape:
    """Input `index` as a shape. Raises ShapeError where its rank is not known before a step or a number is below 0."""
    dims = context.dims(index)
    if dims is None:
        raise context.shape_error(
            f"{name} must be a list of as many numbers as dimensions, known before a step, got {context.input(index)}"
        )
    if any(isinstance(dim, int) and dim < 0 for dim in dims):
        raise context.shape_error(f"{name} {list(dims)} has a dimension below 0")
    return dims


def whole(amounts: tuple[Amount, ...] | None) -> tuple[int, ...] | None:
    """The numbers where all are known, else None."""
    if amounts is None:
        return None
    numbers = tuple(amount for amount in amounts if isinstance(amount, int))
    return numbers if len(numbers) == len(amounts) else None
