"""A table's steps: how they are merged and applied, and pushes of rows put together from chunks. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from weft_kvstore.arrays import Array
from weft_kvstore.bucket.steps import BucketSteps, contradiction
from weft_kvstore.bucket.update import RULE_ERRORS, RuleFailedError, UpdateSpec
from weft_kvstore.description.records import Merge
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.rows.rows import Rows, is_ascending, merged

# --- How a table is merged and updated --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec(UpdateSpec):
    """`given` says that there is no first value: it is set."""

    key: str
    priority: int
    given: bool

    def where(self, slot: int, step: int) -> str:
        """The words by which an error names a slot, the key and a step."""
        return f"slot {slot}, key {self.key!r}, step {step}"

    def at_step(self, step: int) -> str:
        """The words by which an error names the key and a step of its own."""
        return f"key {self.key!r}, slice 0, step {step}"

    @contextmanager
    def rule_runs(self, step: int) -> Iterator[None]:
        """Around a call of the rule: raises RuleFailedError for an error that the rule's numbers may cause."""
        try:
            yield
        except RULE_ERRORS as error:
            detail = str(error) or type(error).__name__  # A MemoryError has no words.
            raise RuleFailedError(f"rule {self.rule.name!r} failed on {self.at_step(step)}: {detail}") from error


class Due(NamedTuple):
    """An update that is due: of job step `step`, the sum of its gradients; None where there was none. `slot` is whose
    gradient it is, where each is applied by itself."""

    step: int
    total: Rows | None
    slot: int | None = None


# --- Which steps of a table are in, merged and applied: all slots together, or each by itself -------------------------
# Where slots go together gradients are added in slot order: the longest complete prefix at once, while later ones
# wait, so that the sum is the same bits for any order of arrival; or in the order of arrival.


class TableSteps:
    """`counts` are a table's steps as those of a bucket of one slice. `_waiting` has what came and is not merged, by
    number of its slot and step, in order of arrival. `_merged` slots are in the sum of the next step, `_total`."""

    def __init__(self, slots: tuple[int, ...], merge: Merge, *, is_sync: bool) -> None:
        self.counts = BucketSteps(slots, 1, is_sync=is_sync)
        self.version = 0
        """How many steps every slot is through with."""
        self._is_sync = is_sync
        self._by_slot = merge is Merge.SLOT
        self._waiting: dict[tuple[int, int], Rows | None] = {}
        self._merged = 0
        self._total: Rows | None = None

    def begin_at(self, version: int) -> None:
        """Where nobody has said anything, steps begin at a version."""
        self.counts.begin_at(version, 0, 1)
        self.version = version

    @property
    def holds(self) -> bool:
        """Whether anything has come that is not applied."""
        return bool(self._waiting or self._merged)

    @property
    def begun(self) -> int:
        """The first step that no slot has pushed, nor a later one."""
        return max([int(self.counts.arrived.max(initial=0)), *(step + 1 for _, step in self._waiting)])

    def check(self, slot: int, step: int, where: str, *, pushes: bool) -> None:
        """Raises PushRefusedError where a slot's gradient, or its word that it has none, contradicts what is there."""
        index = self.counts.indices.get(slot)
        index = self.counts.index_of(slot, where) if index is None else index
        self.counts.check(index, step, 0, 1, pushes=pushes, where=lambda _: where)
        if (index, step) in self._waiting and (self._waiting[index, step] is not None) != pushes:  # It came early.
            raise PushRefusedError(f"{where}: {contradiction(before=not pushes)}")

    def is_over(self, slot: int, step: int) -> bool:
        """Whether what the slot may still say of this step changes nothing."""
        index = self.counts.indices[slot]
        return step < self.counts.arrived[index, 0] or (index, step) in self._waiting

    def accept(self, slot: int, step: int, gradient: Rows | None) -> bool:
        """Takes in what `check` lets pass: a slot's gradient, or None for nothing. True if it may be due at once. What
        was in before changes nothing: exactly once holds."""
        if self.is_over(slot, step):
            return False
        index, first = self.counts.indices[slot], step
        self._waiting[index, step] = gradient
        while (index, step) in self._waiting and self.counts.arrived[
            index, 0
        ] == step:  # and what came before it was due
            self.counts.accept(index, step, 0, 1)
            step += 1
        return first == self.version if self._is_sync else step > first

    def merge_next(self) -> int | None:
        """Adds the next gradient that has come and can be added: how many elements. None where there is none."""
        step = self.version
        if not self._is_sync:
            return None  # Each gradient is an update of its own.
        index = self._merged if self._by_slot else next((index for index, of in self._waiting if of == step), -1)
        if (index, step) not in self._waiting:
            return None
        gradient = self._waiting.pop((index, step))
        self._merged += 1
        self.counts.through[index], self.counts.pushed[index] = step + 1, gradient is not None
        if gradient is None:
            return 0
        if self._total is None:
            self._total = gradient
            return 0
        self._total = merged(self._total, gradient)
        return self._total.size

    def due(self) -> Due | None:
        """The next update, once `merge_next` has completed it. It stays the next one until `advance`."""
        slots = self.counts.slots
        if self._is_sync:
            is_due = 0 < len(slots) == self._merged
            return Due(self.version, self._total) if is_due else None
        key = self._next_alone
        return None if key is None else Due(key[1], self._waiting[key], slots[key[0]])

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
        due = self._next_alone if keep_due and not self._is_sync else None
        self._waiting = {one: rows for one, rows in self._waiting.items() if one[0] != index or one == due}
        self.counts.forget(index)
        if due is not None and due[0] == index:
            self.counts.accept(index, due[1], 0, 1)


# --- Pushes of rows that have come in part: a slot is in when all chunks of its push have come ------------------------


class _Push:
    """A push of `chunks` chunks, of which those numbered in `arrived` have. `parts` are ids and values by the number of
    their first chunk: what came as one run stays one part."""

    __slots__ = ("arrived", "chunks", "parts")

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.arrived: set[int] = set()
        self.parts: dict[int, tuple[Array, Array]] = {}


class RowPushes:
    """Pushes by slot and step; every chunk but the last has `chunk_rows` rows. What is kept is what has come: a number
    of chunks that a peer claims takes no memory."""

    __slots__ = ("_a_chunk", "_open")

    def __init__(self, chunk_rows: int) -> None:
        self._a_chunk = chunk_rows
        self._open: dict[tuple[int, int], _Push] = {}

    @property
    def begun(self) -> int:
        """The first step of which no chunk has come, nor of a later one."""
        return max((step + 1 for _, step in self._open), default=0)

    def check_nothing(self, slot: int, step: int, where: str) -> None:
        """Raises PushRefusedError where the slot declares nothing and has pushed."""
        if (slot, step) in self._open:
            raise PushRefusedError(f"{where}: {contradiction(before=True)}")

    def add(self, slot: int, step: int, rows: Rows, run: range, chunks: int, where: str) -> Rows | None:  # noqa: PLR0917
        """Takes in a run of the chunks of a push, each of them once: all rows, once they are complete. Raises
        PushRefusedError where it contradicts what is there, or itself."""
        push = self._open.get((slot, step)) or _Push(chunks)
        if push.chunks != chunks:
            raise PushRefusedError(f"{where}: a push of {push.chunks} parts before and of {chunks} now")
        (part,) = rows.parts
        if not is_ascending(part[0]):
            raise PushRefusedError(f"{where}: rows of chunks {run.start} to {run.stop - 1} do not ascend")
        new = [number for number in run if number not in push.arrived]
        parts = {run.start: part}
        if len(new) < len(run):
            chunk_rows = self._a_chunk
            some = {
                number: slice((number - run.start) * chunk_rows, (number - run.start + 1) * chunk_rows)
                for number in new
            }
            parts = {number: (part[0][one], part[1][one]) for number, one in some.items()}
        if len(push.arrived) + len(new) < chunks:
            push.parts |= parts
            push.arrived.update(new)
            self._open[slot, step] = push
            return None
        whole = [one for _, one in sorted((push.parts | parts).items(), key=itemgetter(0))]
        for (before, _), (behind, _) in pairwise(whole):
            if not before[-1] < behind[0]:
                raise PushRefusedError(f"{where}: rows of its chunks do not ascend")
        self._open.pop((slot, step), None)
        return Rows.of(whole)

    def drop(self, slot: int) -> None:
        """Forgets what a slot has not completed."""
        self._open = {of: push for of, push in self._open.items() if of[0] != slot}
