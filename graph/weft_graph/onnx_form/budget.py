"""What reading a model may cost: nodes and values, counted as they are read, also those that functions bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import onnx

from weft_graph.limits import Limits
from weft_graph.onnx_form.errors import OnnxError

MOST_BODIES: Final = 8
"""Bodies inside bodies, as many as the JSON form takes."""

MOST_CALLS: Final = 32
"""Functions inside functions."""


@dataclass(slots=True)
class Budget:
    """Counts against the limits. A function that is called a thousand times counts a thousand times."""

    limits: Limits
    nodes: int = 0
    values: int = 0

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
