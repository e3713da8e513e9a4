"""Sums the gradients of a step's parts, which are computed one after the other, before they are sent."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft_kernels.kernel import Array
from weft_worker.engine.work import Variable
from weft_worker.upload import Upload


@dataclass(slots=True)
class Accumulation:
    """One step of `parts` parts, in order. Keys of `means` become the mean of what the parts send, others the sum.

    `held` are fetched values, which all parts read: each is fetched by the first. Its dicts are written by work of the
    engine, in the order that the variables beside them give: `fetched` for the values held, `summed` for the sums.
    """

    parts: int
    means: Collection[str] = ()
    fetched: dict[str, Variable] = field(default_factory=dict)
    summed: dict[str, Variable] = field(default_factory=dict)
    held: dict[str, Array | Upload] = field(default_factory=dict)
    _sums: dict[str, Array] = field(default_factory=dict)
    _rows: dict[str, list[tuple[Array, Array]]] = field(default_factory=dict)

    def add(self, key: str, gradient: Array, xp: Any) -> None:
        """Adds a part's; the first is copied, since its memory may be used again."""
        if key in self._sums:
            xp.add(self._sums[key], gradient, out=self._sums[key])
        else:
            self._sums[key] = gradient.copy()

    def take(self, key: str) -> Array:
        """The sum, or mean, of all parts; it is forgotten here."""
        total = self._sums.pop(key)
        if key in self.means:
            total /= self.parts
        return total

    def take_all(self) -> tuple[dict[str, Array], dict[str, tuple[Array, Array]]]:
        """Everything that was added: sums and means, and ids and rows of all parts."""
        rows = {key: self.take_rows(key) for key in list(self._rows)}
        joined = {key: (np.concatenate(ids), np.concatenate(some)) for key, (ids, some) in rows.items()}
        return {key: self.take(key) for key in list(self._sums)}, joined

    def add_rows(self, key: str, ids: Array, rows: Array) -> None:
        """Keeps a part's gradient of some rows of a table."""
        self._rows.setdefault(key, []).append((ids.copy(), rows.copy()))

    def take_rows(self, key: str) -> tuple[list[Array], list[Array]]:
        """The ids and the rows of each part, in order; the store sums those of one id."""
        kept = self._rows.pop(key)
        return [ids for ids, _ in kept], [rows for _, rows in kept]


@dataclass(frozen=True, slots=True)
class StepPart:
    """Part `number` of a step whose gradients are accumulated."""

    accumulation: Accumulation
    number: int

    @property
    def is_last(self) -> bool:
        return self.number + 1 == self.accumulation.parts
