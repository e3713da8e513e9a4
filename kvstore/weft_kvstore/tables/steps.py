"""A table's steps: pushes put together from chunks, and the sums of gradients. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from weft_kvstore.arrays import Array, Segment
from weft_kvstore.bucket.steps import RULE_ERRORS, UpdateSpec, contradiction
from weft_kvstore.bucket.sums import PendingSteps
from weft_kvstore.description.records import Merge
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.rows.rows import Chunks, Rows, merging
from weft_kvstore.wire.codec import PushSegment

# --- How a table is merged and updated --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec(UpdateSpec):
    """`given` says that there is no first value: it is set."""

    key: str
    priority: int
    given: bool

    def key_named(self, slice_: int) -> str:
        return f"key {self.key!r}"

    @contextmanager
    def rule_runs(self, step: int) -> Iterator[None]:
        """Around a call of the rule: raises RuleFailedError for an error that the rule's numbers may cause."""
        try:
            yield
        except RULE_ERRORS as error:
            raise self.failed(step, error) from error


# --- Gradients of a table's steps: all slots together, or each by itself ----------------------------------------------
# Where slots go together gradients are added in slot order: the longest complete prefix at once, while later ones
# wait, so that the sum is the same bits for any order of arrival; or in the order of arrival.


class TableSteps(PendingSteps):
    """A table is one slice, whose elements are lists of `Rows`. `open` has pushes that have come in part, by number of
    the slot and step. Where slots go together `_total` is the sum of those of the next step that are added."""

    def __init__(self, spec: TableSpec, chunk_rows: int) -> None:
        super().__init__(spec, np.arange(2))
        self.spec: TableSpec = spec
        self.open: dict[tuple[int, int], Chunks] = {}
        self._chunk_rows = chunk_rows
        self._total: list[Rows] | None = None

    @property
    def version(self) -> int:
        """How many steps every slot is through with."""
        return int(self.steps.version[0])

    def push_rows(self, slot: int, step: int, ids: Array, values: Array, pushed: PushSegment) -> bool:
        """Takes in a segment of chunks of a push, each of which counts once: the slot is in when all chunks are. True
        if there may be something to merge now. Raises PushRefusedError where it contradicts what is there, or
        itself."""
        whole: Sequence[Rows] = [Rows(ids, values)]
        if pushed.count < pushed.chunks or self.open:
            self.check(slot, step, 0, 1, pushes=True)
            of, where = (self.steps.indices[slot], step), self._where(slot, step, 0)
            if step < self.steps.arrived[of[0], 0] or of in self._waiting:
                return False
            push = self.open.setdefault(of, Chunks(pushed.chunks))
            if push.count != pushed.chunks:
                raise PushRefusedError(f"{where}: a push of {push.count} parts before and of {pushed.chunks} now")
            whole = [
                Rows(*part) for part in push.add(pushed.first, pushed.count, self._chunk_rows, (ids, values), where)
            ]
            if not whole:
                return False
            del self.open[of]
        self.push(slot, step, [Segment(0, 1, whole)])
        return not self.spec.is_sync or step == self.steps.version[0]

    def check(self, slot: int, step: int, first: int, stop: int, *, pushes: bool) -> None:
        if not pushes and (self.steps.indices.get(slot), step) in self.open:
            raise PushRefusedError(f"{self._where(slot, step, first)}: {contradiction(before=True)}")
        super().check(slot, step, first, stop, pushes=pushes)

    def is_untouched(self, first: int, stop: int) -> bool:
        return not self.open and super().is_untouched(first, stop)

    def replace(self, slot: int) -> None:
        index = self.steps.indices.get(slot)
        self.open = {of: push for of, push in self.open.items() if of[0] != index}
        super().replace(slot)

    def _adding(self, step: int) -> Iterator[int]:
        """Adds the gradients of the next step that have come and can be added; stops often, with how many elements it
        has used since it last did. What is added is no longer waited for, so it has to be gone through to its end."""
        through = self.steps.through
        while self.spec.is_sync and self._waiting:  # In another mode each gradient is an update of its own.
            index = int(np.count_nonzero(through > step))
            if self.spec.merge is Merge.ARRIVAL:
                index = next(iter(self._order(step)), -1)
            if (index, step) not in self._waiting:
                return
            gradient = self._take(index, step)
            if gradient is not None:
                self._total = gradient if self._total is None else (yield from merging(self._total, gradient))

    def _take(self, index: int, step: int) -> list[Rows] | None:
        """Removes a slot's gradient, or its word that it has none, which is added or applied from now on."""
        segments = self._waiting.pop((index, step)).segments
        self._is_added(index, step, segments)
        self.steps.through[index] = step + 1
        gradient: list[Rows] | None = segments[0].elements
        return gradient

    def _due(self, next_step: int) -> tuple[int, int, list[Rows] | None] | None:
        """The next update, once `_adding` has completed it: of a job's step, the sum of its gradients, or None where
        there was none; else the first gradient that came of those that are next of their slot, which is not taken. The
        number of a slot, the step, and the gradient."""
        through = self.steps.through
        if self.spec.is_sync:
            return (0, next_step, self._total) if min(through.ravel().tolist(), default=0) > next_step else None
        for (index, step), pending in self._waiting.items():
            if through[index, 0] == step:
                return index, step, pending.segments[0].elements
        return None
