"""Lists of whole numbers that a node has as an attribute, in older forms, or as a constant input."""

from __future__ import annotations

from weft_graph.attributes import as_ints
from weft_graph.schema import InferContext


def infer_integers(context: InferContext, index: int, name: str) -> tuple[int, ...] | None:
    """The attribute `name`, or the numbers of input `index`; None where there is neither.

    Raises ShapeError, which names the node, where there are both, or where the input is not known before a step.
    """
    given = context.attribute(name) if name in context.node.attributes else None
    type_ = context.optional_input(index)
    if given is not None and type_ is not None:
        raise context.shape_error(f"{name} is an input and an attribute; it must be one of them")
    if given is not None:
        return as_ints(given)
    if type_ is None:
        return None
    known = context.constant(index)
    if known is None:
        raise context.shape_error(f"{name} must be a constant of the graph")
    if known.ndim > 1:
        raise context.shape_error(f"{name} must be a list of numbers, got {type_}")
    return tuple(int(number) for number in known.reshape(-1))


def infer_required_integers(context: InferContext, index: int, name: str) -> tuple[int, ...]:
    """The same, where a node must have one or the other."""
    numbers = infer_integers(context, index, name)
    if numbers is None:
        raise context.shape_error(f"{name} is missing")
    return numbers
