"""What reading a model may cost: nodes and values, counted as they are read, also those that functions bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import onnx

from weft_graph.limits import Limits
from weft_graph.onnx_form.errors import OnnxError

MOST_CALLS: Final = 32
"""Functions inside functions."""

MOST_ITEMS: Final = 1 << 22
"""Of all sequences that nodes give: one that is a longer one's start is counted again."""


@dataclass(slots=True)
class Budget:
    """Counts against the limits. A function that is called a thousand times counts a thousand times."""

    limits: Limits
    nodes: int = 0
    values: int = 0
    added: int = 0
    """Nodes that are none of the file's own: what a node of the file is written out as."""
    added_values: int = 0
    items: int = 0

    def take(self, proto: onnx.NodeProto, name: str) -> None:
        """Counts one node. Raises OnnxError, naming the node, at the first that is one too many."""
        limits = self.limits
        self.nodes += 1
        self.values += len(proto.input) + len(proto.output)
        if self.nodes > limits.nodes:
            raise OnnxError(f"node {name!r} is one more than the {limits.nodes} nodes that are allowed", node=name)
        if self.values > limits.values:
            raise OnnxError(
                f"the nodes up to {name!r} have {self.values} inputs and outputs; at most {limits.values}", node=name
            )
        if max(len(proto.input), len(proto.output)) > limits.node_values:
            raise OnnxError(f"node {name!r} has more than {limits.node_values} inputs or outputs", node=name)
        if len(proto.attribute) > limits.attributes:
            raise OnnxError(f"node {name!r} has more than {limits.attributes} attributes", node=name)

    def add(self, values: int, name: str) -> None:
        """Counts a node that `name`, a node of the file, is written out as, or a body of it.

        Raises OnnxError at the first that is one too many.
        """
        limits = self.limits
        self.added += 1
        self.added_values += values
        if self.added > limits.nodes or self.added_values > limits.values:
            raise OnnxError(
                f"node {name!r} and those before it are written out as more than {limits.nodes} nodes, or as nodes of "
                f"more than {limits.values} inputs and outputs",
                node=name,
            )

    def hold(self, items: int, name: str) -> None:
        """Counts the items of a sequence that a node gives. Raises OnnxError, naming the node, where they are too many.

        The sequences of one model are all held until it is read."""
        self.items += items
        if self.items > MOST_ITEMS:
            raise OnnxError(
                f"the sequences up to node {name!r} have {self.items} items together; at most {MOST_ITEMS}", node=name
            )
