"""What all slices of a plain lot on a shard have in common. Values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from weft_graph.program import Update
from weft_kernels.rules.record import Hyper, Rule
from weft_kvstore.arrays.ranges import ranges_alike
from weft_kvstore.compression.choice import Choice
from weft_kvstore.description.records import KeyDescription, Merge, Mode
from weft_kvstore.hyper.agreement import HyperAgreement
from weft_kvstore.hyper.key_hyper import KeyHyper
from weft_kvstore.merging.computing import Computing
from weft_kvstore.merging.step_gate import StepGate
from weft_kvstore.sharding.lots import LotPart


@dataclass(frozen=True, slots=True)
class LotSpec:
    """Lot `number` with what this shard has of it.

    `keys` by place in the description. `a_piece`: elements that the rule updates at once, of `slices_a_piece` slices at
    most. `gate`: what holds each step until the slots have agreed on it, where they do. `computing` carries out what
    can be cut. `hold`: what holds a step whose hyper-parameters are being changed; `own` has those of keys, by place,
    that were changed for them alone. `is_whole`: the lot is one key that is updated at once, when all its slices are
    merged; slices are how it travels. `pushed` and `pulled` say how gradients travel, and values; None as they are.
    """

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
    slices_a_piece: int
    gate: StepGate | None
    computing: Computing
    pushed: Choice | None = None
    pulled: Choice | None = None
    hold: HyperAgreement | None = None
    is_whole: bool = False
    own: dict[int, KeyHyper] = field(default_factory=dict)

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the state arrays."""
        return tuple(self.rule.state) if self.update is Update.RULE else ()

    @property
    def together(self) -> bool:
        """Whether a step applies once all slots are in, not each slot's by itself."""
        return self.mode is Mode.SYNC

    def is_held(self, step: int) -> bool:
        """Whether a step may not be applied yet."""
        return self.hold is not None and self.hold.holds(step)

    def numbers(self, step: int, first: int, stop: int) -> Iterator[tuple[int, int, Hyper]]:
        """The hyper-parameters of a step for slices, by ranges of them: those of keys that have their own apart."""
        if not self.own:
            yield first, stop, self.hyper.at(step)
            return
        for low, high, place in ranges_alike(self.part.places[first:stop], first):
            yield low, high, self.own.get(place, self.hyper).at(step)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a whole key."""
        return tuple(self.keys[int(self.part.places[0])].shape)

    @property
    def unscaled(self) -> bool:
        """Whether gradients arrive divided by the loss scale."""
        return self.pushed is not None and self.pushed.residual

    def named(self, slice_: int) -> str:
        """The words by which an error names a slice."""
        return f"key {self.keys[int(self.part.places[slice_])].key!r}, slice {int(self.part.indices[slice_])}"

    def key_named(self, slice_: int) -> str:
        return f"key {self.keys[int(self.part.places[slice_])].key!r}"
