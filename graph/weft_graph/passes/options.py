"""What a job may ask of the converter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the passes; each pass reads those that are about it."""

    placement: Mapping[str, str] = field(default_factory=dict)
    """The place of each group of nodes: see `weft_graph.passes.placement`. Without any, all is on one place."""
    fusion: bool = True
    """Whether chains of pointwise nodes become one node each."""
