"""The pass that adds the backward nodes: reverse-mode differentiation of the loss, see `weft_graph.differentiation`."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from weft_graph.differentiation.graph import differentiate
from weft_graph.passes.draft import Draft
from weft_graph.passes.options import Options
from weft_graph.program import LOSS


def differentiation(draft: Draft, _options: Options) -> Draft:
    """The draft with a gradient for each trainable key, a table's being of its rows."""
    derived = differentiate(draft.graph, draft.outputs[LOSS], source=draft.source)
    key_of = {read.rows: read.key for read in draft.reads}
    found = {key_of.get(name, name): gradient for name, gradient in derived.gradients.items()}
    return replace(draft, gradients=MappingProxyType(found)).having(derived.graph, derived.types)
