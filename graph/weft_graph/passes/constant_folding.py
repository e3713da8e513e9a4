"""The pass that computes once what is known before any step: constant folding, without kernels.

What exporters write around Reshape (Shape, Gather, Concat) disappears, and so do scales such as 1 / sqrt(64).
"""

from __future__ import annotations

from dataclasses import replace

from weft_graph.ir import Constant
from weft_graph.passes.draft import Draft
from weft_graph.passes.known_values import known_values
from weft_graph.passes.options import Options


def constant_folding(draft: Draft, _options: Options) -> Draft:
    """The draft with a constant in the place of each node whose outputs are all known."""
    known = known_values(draft.graph)
    kept, folded = [], []
    for node in draft.graph.nodes:
        named = [name for name in node.outputs if name]
        if named and all(name in known.values for name in named):
            folded += [Constant(name, known.values[name]) for name in named]
        else:
            kept.append(node)
    graph = replace(draft.graph, nodes=tuple(kept), constants=(*draft.graph.constants, *folded))
    return draft.having(graph, known.types) if folded else draft
