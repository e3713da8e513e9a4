"""Whether an output is made by a Softmax, LogSoftmax or Sigmoid: then a loss can be taken of its input, the logits.

Exported classifiers often end in one, while the stable form of a loss takes logits: the softmax of a softmax trains
something else, and the logarithm of a probability that was rounded to 0 is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from weft_graph.attributes import as_int, as_ints
from weft_graph.dimensions.dims import DimensionError, product
from weft_graph.ir import ONNX_DOMAIN, Node
from weft_graph.losses.nodes import LossNodes
from weft_graph.types import Shape, TensorType

SOFTMAX: Final = "Softmax"
LOG_SOFTMAX: Final = "LogSoftmax"
SIGMOID: Final = "Sigmoid"

_RESHAPING: Final = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_PASSING: Final = frozenset({"Identity", "Cast", "Transpose", *_RESHAPING})
"""Operators that keep every element, as it is or of another float type: what they do to probabilities they can do to
logits."""


@dataclass(frozen=True, slots=True)
class Activation:
    """The node that makes an output, and `path`, the nodes from it to the output.

    `axis` is the output's axis along which a Softmax or LogSoftmax normalizes; None where it is no single axis there.
    """

    node: Node
    path: tuple[Node, ...]
    axis: int | None

    @property
    def op_type(self) -> str:
        return self.node.op_type

    @property
    def logits(self) -> str:
        """What the node reads."""
        return self.node.inputs[0]

    def logits_as_output(self, nodes: LossNodes) -> str:
        """The logits with the output's shape. Casts to a narrower type are left out: they would lose digits."""
        value = self.logits
        for node in self.path:
            if node.op_type == "Cast":
                wanted = nodes.types[node.outputs[0]].dtype
                value = nodes.cast(value, wanted) if wanted.bits > nodes.types[value].dtype.bits else value
            elif node.op_type != "Identity":
                inputs = (value, *node.inputs[1:])
                value = nodes.add(node.op_type, inputs, f"{node.outputs[0]}/logits", **node.attributes)
        return value


def activation_of(output: str, makers: Mapping[str, Node], types: Mapping[str, TensorType]) -> Activation | None:
    """What makes the value `output`, or None where it is made otherwise. `makers` has the node of each value."""
    path: list[Node] = []
    node = makers.get(output)
    while node is not None and node.domain == ONNX_DOMAIN and node.op_type in _PASSING:
        if not types[node.inputs[0]].dtype.is_float:
            return None
        path.append(node)
        node = makers.get(node.inputs[0])
    if node is None or node.domain != ONNX_DOMAIN or node.op_type not in {SOFTMAX, LOG_SOFTMAX, SIGMOID}:
        return None
    path.reverse()
    return Activation(node, tuple(path), _axis(node, path, types))


def _axis(made: Node, path: Sequence[Node], types: Mapping[str, TensorType]) -> int | None:
    """Where the axis of `made` is behind the nodes of `path`."""
    if made.op_type == SIGMOID:
        return None
    axis: int | None = as_int(made.attributes.get("axis", -1)) % types[made.inputs[0]].rank
    for node in path:
        before, after = types[node.inputs[0]].shape, types[node.outputs[0]].shape
        if axis is None:
            return None
        if node.op_type == "Transpose":
            order = as_ints(node.attributes.get("perm", tuple(reversed(range(len(before))))))
            axis = order.index(axis)
        elif node.op_type in _RESHAPING:
            axis = _reshaped(axis, before, after)
    return axis


def _reshaped(axis: int, before: Shape, after: Shape) -> int | None:
    """The axis of the same size with as many elements behind it: its elements stay beside the same others."""
    try:
        behind = product(before[axis + 1 :])
        return next(
            (at for at, dim in enumerate(after) if dim == before[axis] and product(after[at + 1 :]) == behind), None
        )
    except DimensionError:
        return None
