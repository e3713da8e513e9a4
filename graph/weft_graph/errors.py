"""What the graph room raises.

GraphError
+-- GraphFormatError    the JSON is not a graph; `pointer` says where (RFC 6901)
+-- GraphRefusedError   it is a graph, but not a legal one; `node` says where
    +-- UnknownOperatorError
    +-- ShapeError
    +-- DTypeError
    +-- NoGradientError
"""

from __future__ import annotations


class GraphError(Exception):
    """A graph cannot be used. `pointer` is a JSON pointer into its JSON form, `node` a node's or value's name."""

    def __init__(self, message: str, *, pointer: str = "", node: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.pointer = pointer
        self.node = node


class GraphFormatError(GraphError):
    """The document is not a graph of a format version that this reader knows."""


class GraphRefusedError(GraphError):
    """The graph is well formed and cannot be trained; the message names the node or value and both sides."""


class UnknownOperatorError(GraphRefusedError):
    """A node's operator has no schema."""


class ShapeError(GraphRefusedError):
    """Shapes do not fit the node's operator."""


class DTypeError(GraphRefusedError):
    """Element types do not fit the node's operator."""


class NoGradientError(GraphRefusedError):
    """A parameter's gradient would have to pass through an operator that has none."""
