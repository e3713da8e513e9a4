"""All passes in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from weft_graph.differentiation import differentiate
from weft_graph.passes.communication import communication, row_reads, statistics, tables, urgency
from weft_graph.passes.draft import Draft, Options
from weft_graph.passes.fusion import fusion
from weft_graph.passes.inference_mode import inference_mode
from weft_graph.passes.placement import placement
from weft_graph.passes.precision import precision
from weft_graph.passes.recompute import recompute
from weft_graph.passes.simplify import common_subexpressions, constant_folding, dead_code, inline, pools_before_relu
from weft_graph.program import LOSS, Role

# ----------------------------------------------------------------------------------------------------------------------
# The pass that adds the backward nodes: reverse-mode differentiation of the loss, see `weft_graph.differentiation`.


def differentiation(draft: Draft, _options: Options) -> Draft:
    """Adds the backward pass: a gradient for each trainable parameter, a table's being of its rows."""
    derived = differentiate(draft.graph, draft.outputs[LOSS], source=draft.source)
    key_of = {read.rows: read.key for read in draft.reads}
    found = {key_of.get(name, name): gradient for name, gradient in derived.gradients.items()}
    return replace(draft, gradients=MappingProxyType(found)).having(derived.graph, derived.types)


@dataclass(frozen=True, slots=True)
class Pass:
    """A pure function of a draft, and what people call it."""

    name: str
    run: Callable[[Draft, Options], Draft]


Watch = Callable[[Pass, Draft, Draft], None]
"""watch(pass, draft before it, draft after it), called after each pass."""

_CLEANING: Final[tuple[Pass, ...]] = (
    Pass("constant folding", constant_folding),
    Pass("common subexpressions", common_subexpressions),
    Pass("dead code", dead_code),
)

SHARED: Final[tuple[Pass, ...]] = (
    Pass("running statistics", statistics),
    Pass("inline", inline),
    *_CLEANING,
    Pass("priorities", urgency),
    Pass("tables", tables),
    Pass("pools before Relu", pools_before_relu),
)
"""What is decided once, for all programs: what a key is must not depend on who reads it."""

_FINISHING: Final[tuple[Pass, ...]] = (
    *_CLEANING,
    Pass("placement", placement),
    Pass("fusion", fusion),
)

ROLES: Final[Mapping[Role, tuple[Pass, ...]]] = {
    Role.TRAIN: (
        Pass("row reads", row_reads),
        Pass("precision", precision),
        Pass("differentiation", differentiation),
        *_FINISHING,
        # Passes that rewrite a whole training step stand here: what they see is what runs.
        Pass("recomputation", recompute),
        Pass("communication", communication),
    ),
    Role.EVALUATE: (
        Pass("inference", inference_mode),
        Pass("dead code", dead_code),
        Pass("row reads", row_reads),
        Pass("precision", precision),
        *_FINISHING,
        Pass("communication", communication),
    ),
}


def run_passes(passes: Iterable[Pass], draft: Draft, options: Options, watch: Watch | None = None) -> Draft:
    """The draft after all the passes."""
    for each in passes:
        before, draft = draft, each.run(draft, options)
        if watch is not None:
            watch(each, before, draft)
    return draft
