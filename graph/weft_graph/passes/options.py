"""What a job may ask of the converter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Recompute(StrEnum):
    """How much is computed again: nothing, what is cheap, or the forward part from some checkpoints on."""

    OFF = "off"
    CHEAP = "cheap"
    SEGMENTS = "segments"


class Precision(StrEnum):
    """In what products, and what follows them element by element, are computed."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the passes; each pass reads those that are about it."""

    placement: Mapping[str, str] = field(default_factory=dict)
    """The place of each group of nodes: see `weft_graph.passes.placement`. Without any, all is on one place."""
    fusion: bool = True
    """Whether chains of pointwise nodes become one node each."""
    recompute: Recompute = Recompute.OFF
    """Which forward values are computed again in the backward part instead of being held."""
    precision: Precision = Precision.FLOAT32
    """What float32 values are computed in: see `weft_graph.passes.precision`."""
    dims: Mapping[str, int] = field(default_factory=dict)
    """What named dimensions are taken as where sizes are compared; the programs stay good for any."""
    whole_rule: str = ""
    """Why the job's rule needs keys whole, in words, if it does: a trained table whose `lazy_update` is False is dense
    then."""
