"""What a shard has to know of a table. Values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_graph.program import Update
from weft_kernels.rules.record import Rule
from weft_kvstore.bucket.update import RULE_ERRORS, RuleFailedError
from weft_kvstore.description.records import Merge, Mode
from weft_kvstore.hyper import HyperAgreement, KeyHyper
from weft_kvstore.merging.step_gate import StepGate
from weft_kvstore.merging.work import PIECE_ELEMENTS


@dataclass(frozen=True, slots=True)
class KeyRules:
    """How the key is merged and updated.

    `bucket` is its number; `given` says that there is no first value: it is set. `a_piece`: elements that the rule
    updates at once. `gate`: what all units of the shard wait for before they apply a step, where steps are committed.
    `unscaled`: gradients arrive divided by the loss scale. `hold`: what holds a step whose hyper-parameters are being
    changed.
    """

    key: str
    bucket: int
    priority: int
    dtype: np.dtype[Any]
    slots: tuple[int, ...]
    update: Update
    merge: Merge
    mode: Mode
    staleness: int
    rule: Rule
    hyper: KeyHyper
    given: bool = False
    a_piece: int = PIECE_ELEMENTS
    gate: StepGate | None = None
    unscaled: bool = False
    hold: HyperAgreement | None = None

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the key's state arrays."""
        return tuple(self.rule.state) if self.update is Update.RULE else ()

    @property
    def holds_at_once(self) -> bool:
        """Whether a value that is set waits for no step: slots go on by themselves, or nobody contributes."""
        return self.mode is not Mode.SYNC or not self.slots

    def named(self, slot: int) -> str:
        """The words by which an error names a slot and the key."""
        return f"slot {slot}, key {self.key!r}"

    def where(self, slot: int, step: int) -> str:
        """The words by which an error names a slot, the key and a step."""
        return f"slot {slot}, key {self.key!r}, step {step}"

    def at_step(self, step: int) -> str:
        """The words by which an error names the key and a step of its own."""
        return f"key {self.key!r}, slice 0, step {step}"

    @contextmanager
    def rule_runs(self, step: int) -> Iterator[None]:
        """Around the rule's own call, for what it raises is the user's to hear of. Raises RuleFailedError."""
        try:
            yield
        except RULE_ERRORS as error:
            told = f"rule {self.rule.name!r} failed on {self.at_step(step)}: {error}"
            raise RuleFailedError(told) from error
