"""What all slices of a plain lot on a shard have in common. Values."""

from __future__ import annotations

from dataclasses import dataclass

from weft_graph.program import Update
from weft_kernels.rules.record import Rule
from weft_kvstore.apply_pool import ApplyPool
from weft_kvstore.description import KeyDescription, Merge, Mode
from weft_kvstore.hyper import KeyHyper
from weft_kvstore.lots import LotPart
from weft_kvstore.step_gate import StepGate


@dataclass(frozen=True, slots=True)
class LotSpec:
    """Lot `number` with what this shard has of it. `keys` by place in the description. `a_piece`: elements that the
    rule updates at once. `gate`: what holds each step until the slots have agreed on it, where they do. `pool` computes
    what can be cut."""

    number: int
    part: LotPart
    keys: tuple[KeyDescription, ...]
    slots: tuple[int, ...]
    update: Update
    merge: Merge
    mode: Mode
    staleness: int
    rule: Rule
    hyper: KeyHyper
    a_piece: int
    gate: StepGate | None
    pool: ApplyPool

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the state arrays."""
        return tuple(self.rule.state) if self.update is Update.RULE else ()

    @property
    def together(self) -> bool:
        """Whether a step applies once all slots are in, not each slot's by itself."""
        return self.mode is Mode.SYNC

    def named(self, slice_: int) -> str:
        """The words by which an error names a slice."""
        return f"key {self.keys[int(self.part.places[slice_])].key!r}, slice {int(self.part.indices[slice_])}"

    def key_named(self, slice_: int) -> str:
        return f"key {self.keys[int(self.part.places[slice_])].key!r}"
