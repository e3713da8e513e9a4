"""Where scores have their classes: on axis 1 of four dimensions or more, as images have them (batch, classes, height,
width), and on the last axis else: (batch, classes), and (batch, positions, classes) as language models give them.
"""

from __future__ import annotations

from weft_graph.errors import ShapeError
from weft_graph.types import TensorType


def classes_axis(scores: TensorType, asked: int | None, what: str) -> int:
    """The axis of the classes, `asked` or by the rule; `what` names the scores. Raises ShapeError."""
    rank = scores.rank
    if rank < 2:
        raise ShapeError(f"{what} is {scores}; scores of classes are (batch, classes, ...)")
    if asked is None:
        return 1 if rank >= 4 else rank - 1
    if not -rank <= asked < rank or asked % rank == 0:
        raise ShapeError(f"classes_axis {asked}: {what} is {scores}, whose classes can be on the axes 1 to {rank - 1}")
    return asked % rank


def classes_second(rank: int, axis: int) -> tuple[int, ...] | None:
    """The order of dimensions that brings the classes to axis 1, where ONNX's losses want them; None if they are."""
    return None if axis == 1 else (0, axis, *(place for place in range(1, rank) if place != axis))
