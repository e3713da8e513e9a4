"""A graph or a body while it is read: its nodes so far, its constants, and what is known of its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from weft_graph.errors import GraphError
from weft_graph.infer import Inference
from weft_graph.ir import ONNX_DOMAIN, AttributeValue, Constant, Node
from weft_graph.onnx_form.imported import Array
from weft_graph.onnx_form.shared import Shared
from weft_graph.types import TensorType

_NOT_INFERRED: Final = (GraphError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What inference raises on nodes that no check has seen yet: their types stay unknown, and the check finds them."""


@dataclass(slots=True, eq=False)
class Draft:
    """Types are inferred only once somebody asks: most models never need one to be read."""

    shared: Shared
    outer: Draft | None = None
    nodes: list[Node] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    declared: dict[str, TensorType] = field(default_factory=dict)
    """Types that the file says of values; what is inferred goes before."""
    inference: Inference = field(default_factory=lambda: Inference({}))
    _inferred: int = 0

    def append(self, node: Node) -> None:
        self.nodes.append(node)

    def emit(
        self,
        op_type: str,
        inputs: Sequence[str],
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        name: str,
        outputs: int = 1,
        domain: str = ONNX_DOMAIN,
    ) -> tuple[str, ...]:
        """Adds a node that is none of the file's, called after `name`, and returns its outputs' names."""
        made = tuple(self.shared.value_name(f"{name}/{op_type}") for _ in range(outputs))
        own = self.shared.node_name(f"{name}/{op_type}")
        self.shared.budget.add(len(inputs) + outputs, name)
        self.append(Node(op_type, own, tuple(inputs), made, dict(attributes or {}), domain))
        return made

    def constant(self, array: Array, name: str) -> str:
        """The name of a new constant, called after `name`."""
        own = self.shared.value_name(name)
        self.keep(own, array)
        return own

    def keep(self, name: str, array: Array) -> None:
        """Adds a constant of that very name."""
        array = np.asarray(array, order="C")
        array.flags.writeable = False
        self.constants.append(Constant(name, array))
        self.inference.add_constant(self.constants[-1])

    def type_of(self, name: str) -> TensorType | None:
        """What is known of a value of this draft or of one around it."""
        self._infer()
        found = self.inference.types.get(name) or self.declared.get(name)
        return found if found is not None or self.outer is None else self.outer.type_of(name)

    def value_of(self, name: str) -> Array | None:
        """The value where it is known before any step: a constant, or small numbers made of such."""
        self._infer()
        found = self.inference.known.get(name)
        return found if found is not None or self.outer is None else self.outer.value_of(name)

    def _infer(self) -> None:
        while self._inferred < len(self.nodes):
            node = self.nodes[self._inferred]
            self._inferred += 1
            for name in node.inputs:
                self._bring(name)
            try:
                self.inference.add(node)
            except _NOT_INFERRED:
                self.inference.types.update((out, self.declared[out]) for out in node.outputs if out in self.declared)

    def _bring(self, name: str) -> None:
        """Makes what is known of a value around this body known in it."""
        if not name or self.outer is None or name in self.inference.types:
            return
        type_ = self.outer.type_of(name)
        if type_ is not None:
            self.inference.types[name] = type_
        value = self.outer.value_of(name)
        if value is not None:
            self.inference.known[name] = value
