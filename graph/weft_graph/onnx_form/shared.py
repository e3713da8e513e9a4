"""What all graphs of one model share while it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from weft_graph.names import FreshNames
from weft_graph.onnx_form.budget import Budget
from weft_graph.onnx_form.imported import ReadOptions
from weft_graph.onnx_form.tensors import Tensors
from weft_graph.onnx_form.text import legal

_ROOM_FOR_NUMBERS: Final = 16
"""Characters of a name that are left for what makes it unique."""


@dataclass(slots=True)
class Shared:
    """Names of values and of nodes are unique in the whole model, bodies and inlined functions included."""

    options: ReadOptions
    tensors: Tensors
    budget: Budget
    values: FreshNames = field(default_factory=lambda: FreshNames(()))
    node_names: FreshNames = field(default_factory=lambda: FreshNames(()))
    leaves: set[str] = field(default_factory=set)
    """The names, in weft's graph, of initializers and constants."""
    warnings: list[str] = field(default_factory=list)

    def value_name(self, stem: str) -> str:
        return self.values.fresh(legal(stem, self.options.limits.name - _ROOM_FOR_NUMBERS))

    def node_name(self, stem: str) -> str:
        return self.node_names.fresh(legal(stem, self.options.limits.name - _ROOM_FOR_NUMBERS))
