"""A table's steps: how they are merged and applied, and pushes and pulls put together from chunks. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.bucket.steps import BucketSteps, contradiction
from weft_kvstore.bucket.update import RULE_ERRORS, RuleFailedError, UpdateSpec
from weft_kvstore.description.records import Merge
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.rows.rows import Chunks, Rows, merging
from weft_kvstore.settings import STEPS_AHEAD
from weft_kvstore.wire.codec import Run

# --- How a table is merged and updated --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec(UpdateSpec):
    """`given` says that there is no first value: it is set."""

    key: str
    priority: int
    given: bool

    def at_step(self, step: int) -> str:
        """The words by which an error names the key and a step of its own."""
        return f"key {self.key!r}, slice 0, step {step}"

    @contextmanager
    def rule_runs(self, step: int) -> Iterator[None]:
        """Around a call of the rule: raises RuleFailedError for an error that the rule's numbers may cause."""
        try:
            yield
        except RULE_ERRORS as error:
            raise self.failed(step, error) from error

    def failed(self, step: int, error: Exception) -> RuleFailedError:
        """The rule has failed with this error."""
        detail = str(error) or type(error).__name__  # A MemoryError has no words.
        return RuleFailedError(f"rule {self.rule.name!r} failed on {self.at_step(step)}: {detail}")


class AskedRows:
    """The rows that a pull asks a table for: `ids` are their indices on this shard (n), once all `chunks` of them have
    come, which have `nbytes`. Where they are those that the same request pushes (`are_pushed`), there are as many
    chunks as of these, 0 before the first."""

    __slots__ = ("_parts", "are_pushed", "chunks", "ids", "nbytes", "table")

    def __init__(self, table: Any, chunks: int) -> None:
        """`table` is a `TableState`."""
        self.table = table
        self.chunks = chunks
        self.are_pushed = not chunks
        self.ids: Array | None = None
        self.nbytes = 0
        self._parts: Chunks | None = None

    def add(self, run: Run, chunk_rows: int, ids: Array) -> bool:
        """Takes in a run of chunks of the ids, each once. True when these were the last that were missing. Raises
        PushRefusedError where they do not ascend."""
        if self.ids is not None:
            return False
        self.chunks = run.chunks
        if run.count < run.chunks:
            self._parts = self._parts or Chunks(run.chunks)
            parts = self._parts.add(run.first, run.count, chunk_rows, (ids,), "ids of a pull")
            self.nbytes += ids.nbytes
            if not parts:
                return False
            ids = np.concatenate([one for (one,) in parts])
        else:
            self.nbytes += ids.nbytes
        self.ids, self._parts = ids, None
        return True


# --- Which steps of a table are in, merged and applied: all slots together, or each by itself -------------------------
# Where slots go together gradients are added in slot order: the longest complete prefix at once, while later ones
# wait, so that the sum is the same bits for any order of arrival; or in the order of arrival.


class TableSteps:
    """`counts` are a table's steps as those of a bucket of one slice. `_waiting` has what came and is not merged, by
    number of its slot and step, in order of arrival. `_merged` slots are in the sum of the next step, `_total`."""

    def __init__(self, slots: tuple[int, ...], merge: Merge, *, is_sync: bool, chunk_rows: int, key: str) -> None:
        self.counts = BucketSteps(slots, 1, is_sync=is_sync)
        self.version = 0
        """How many steps every slot is through with."""
        self._is_sync, self._chunk_rows, self._key = is_sync, chunk_rows, key
        self._by_slot = merge is Merge.SLOT
        self._waiting: dict[tuple[int, int], list[Rows] | None] = {}
        self.open: dict[tuple[int, int], Chunks] = {}
        """Pushes that have come in part, by number of the slot and step."""
        self._merged = 0
        self._total: list[Rows] | None = None

    def begin_at(self, version: int) -> None:
        """Where nobody has said anything, steps begin at a version."""
        self.counts.begin_at(version, 0, 1)
        self.version = version

    @property
    def holds(self) -> bool:
        """Whether anything has come that is not applied."""
        return bool(self._waiting or self._merged)

    def check(self, slot: int, step: int, *, pushes: bool) -> bool:
        """Whether what the slot says of a step is new. Raises PushRefusedError where its gradient, or its word that it
        has none, contradicts what is there."""
        counts = self.counts
        index = counts.indices.get(slot, -1)
        arrived = counts.arrived[index, 0] if index >= 0 else -1
        if step == arrived and step <= self.version + STEPS_AHEAD and not self.open:
            return True  # The next one, as nearly always.
        where = self._where(slot, step)
        index = counts.index_of(slot, where)
        if not pushes and (index, step) in self.open:
            raise PushRefusedError(f"{where}: {contradiction(before=True)}")
        counts.check(index, step, 0, 1, pushes=pushes, where=lambda _: where)
        if (index, step) in self._waiting and (self._waiting[index, step] is not None) != pushes:  # It came early.
            raise PushRefusedError(f"{where}: {contradiction(before=not pushes)}")
        return step >= arrived and (index, step) not in self._waiting

    def _where(self, slot: int, step: int) -> str:
        return f"slot {slot}, key {self._key!r}, step {step}"

    def join(self, slot: int, step: int, rows: tuple[Array, Array], run: Run) -> list[Rows] | None:
        """Takes in a run of some of the chunks of a push that is new: all rows, once they are complete. Raises
        PushRefusedError where it contradicts what is there."""
        of, where = (self.counts.indices[slot], step), self._where(slot, step)
        push = self.open.get(of)
        if push is None:
            push = self.open[of] = Chunks(run.chunks)
        if push.count != run.chunks:
            raise PushRefusedError(f"{where}: a push of {push.count} parts before and of {run.chunks} now")
        whole = push.add(run.first, run.count, self._chunk_rows, rows, where)
        if not whole:
            return None
        del self.open[of]
        return [Rows(*part) for part in whole]

    def accept(self, slot: int, step: int, gradient: list[Rows] | None) -> bool:
        """Takes in what `check` finds new: a slot's gradient, or None for nothing. True if it may be due at once."""
        index = self.counts.indices[slot]
        arrived, first = self.counts.arrived[index], step
        self._waiting[index, step] = gradient
        while arrived[0] == step and (index, step) in self._waiting:  # and what came before it was due
            step += 1
            arrived[0] = step
        return first == self.version if self._is_sync else step > first

    def merging(self) -> Iterator[int]:
        """Adds the gradients that have come and can be added; stops often, with how many elements it has used since it
        last did. What is added is no longer waited for, so it has to be gone through to its end."""
        if not self._is_sync:
            return  # Each gradient is an update of its own.
        step = self.version
        while True:
            index = self._merged if self._by_slot else next((index for index, of in self._waiting if of == step), -1)
            if (index, step) not in self._waiting:
                return
            gradient = self._waiting.pop((index, step))
            self._merged += 1
            self.counts.through[index], self.counts.pushed[index] = step + 1, gradient is not None
            if gradient is not None:
                self._total = gradient if self._total is None else (yield from merging(self._total, gradient))

    def due(self) -> tuple[int, list[Rows] | None] | None:
        """The next update, once `merging` has completed it: of a job's step, the sum of its gradients; None where
        there was none. It stays the next one until `advance`."""
        if self._is_sync:
            return (self.version, self._total) if 0 < len(self.counts.slots) == self._merged else None
        key = self._next_alone
        return None if key is None else (key[1], self._waiting[key])

    @property
    def _next_alone(self) -> tuple[int, int] | None:
        """Where each gradient is an update of its own: the first that came of those that are next of their slot."""
        through = self.counts.through
        return next(((index, step) for index, step in self._waiting if through[index, 0] == step), None)

    def advance(self) -> None:
        """The update that is due was applied."""
        counts = self.counts
        if self._is_sync:
            self._merged, self._total = 0, None
            counts.version += 1
            self.version += 1
            return
        key = self._next_alone
        assert key is not None
        del self._waiting[key]
        counts.through[key[0]] += 1
        self.version = counts.version[0] = int(counts.through.min())

    def replace(self, slot: int, *, keep_due: bool = False) -> None:
        """A newer incarnation fills the slot: what the old one pushed and is not merged is forgotten. `keep_due`: the
        update that is due is being applied."""
        index = self.counts.indices.get(slot)
        if index is None:
            return
        self.open = {of: push for of, push in self.open.items() if of[0] != index}
        due = self._next_alone if keep_due and not self._is_sync else None
        self._waiting = {one: rows for one, rows in self._waiting.items() if one[0] != index or one == due}
        self.counts.forget(index)
        if due is not None and due[0] == index:
            self.counts.accept(index, due[1], 0, 1)
