"""A table on one shard: what is pushed to it, set and pulled of it, step by step; and how far it may grow. Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator
from functools import partial

import numpy as np

from weft_graph.program import Update
from weft_kvstore.arrays import Array, bytes_of
from weft_kvstore.bucket.waiting import PIECE_BYTES, PIECE_ELEMENTS, Answer, PullWait, Work
from weft_kvstore.description.records import Mode, Sparse
from weft_kvstore.rows.memory import TablePlace
from weft_kvstore.rows.rows import Rows
from weft_kvstore.rows.storage import Draw, HeldRows
from weft_kvstore.sharding import RowCut, chunks_of
from weft_kvstore.tables.steps import (
    ChunkRun,
    RowPushes,
    RowsAhead,
    TableGate,
    TableSets,
    TableSteps,
    Taken,
    WaitingPulls,
)
from weft_kvstore.tables.values import Complete, KeyRules, MakeRows, TableValues
from weft_kvstore.wire.messages import Reading
from weft_kvstore.wire.outbox import OneBuffer

# --- A table's rows on one shard: what is pushed to them, set and pulled of them, step by step ------------------------
# Rows are named by their place on the shard, ascending; of a growing table that is the id. They come into being when
# they are first pushed or set.


class TableState(Work):
    """`updates` counts the steps that changed it. An update is made in pieces, and what is half made is shown to
    nobody: `_changing` while it is, and no pull can be answered. `merge_is_due` while a merge is among what is to be
    done.

    Invariant: `_waiting_bytes` are those of gradients that came since a merge began.
    """

    __slots__ = (
        "_changing",
        "_gate",
        "_pushes",
        "_table",
        "_waiting_bytes",
        "applied",
        "cut",
        "merge_is_due",
        "reached",
        "sets",
        "shard",
        "spec",
        "steps",
        "updates",
        "waits",
    )

    def __init__(
        self,
        spec: KeyRules,
        cut: RowCut,
        shard: int,
        first: MakeRows,
        *,
        sparse: Sparse = Sparse.LAZY,
        draw: Draw | None = None,
        place: TablePlace | None = None,
        salt: int | None = None,
    ) -> None:
        """`draw` makes the numbers by which a growing table admits; `salt` says where ids lie in its index: it changes
        no value, and nobody else should know it. Raises MemoryError where not even the addresses are to be had,
        OSError where the place is none, ValueError where numbers are wanted and missing."""
        super().__init__(spec.priority)
        self.spec = spec
        self.cut = cut
        self.shard = shard
        staleness = spec.staleness if spec.mode is Mode.STALE else None
        self.steps = TableSteps(spec.slots, spec.merge, together=spec.mode is Mode.SYNC, staleness=staleness)
        a_piece = max(PIECE_ELEMENTS // max(cut.width, 1), 1)
        self.sets = TableSets(spec, self.steps, partial(RowsAhead, cut.width, cut.dtype, cut.id_dtype, a_piece=a_piece))
        self.waits = WaitingPulls()
        self.updates = 0
        self.applied: Callable[[int, int], None] | None = None
        """Told (slot, step) of each slot's gradient that is applied by itself, where somebody asks."""
        self.reached: Callable[[int], None] | None = None
        """Told each version that it has come to, where somebody asks."""
        self.merge_is_due = False
        self._gate = None if spec.gate is None else TableGate(spec.gate, spec)
        self._changing = False
        self._pushes = RowPushes(cut.rows_up)
        self._waiting_bytes = 0
        self._table = TableValues(
            spec, cut, shard, first, a_piece=a_piece, sparse=sparse, draw=draw, place=place, salt=salt
        )

    @property
    def version(self) -> int:
        return self.steps.version

    @property
    def piece_bytes(self) -> int:
        is_long = self._changing or len(self.todo) > int(self.merge_is_due)  # beside a merge there are long answers
        return PIECE_BYTES if is_long else min(self.nbytes, PIECE_BYTES)

    def begun(self) -> tuple[int, str]:
        """The first step of which nothing has come, nor of a later one; and in words what has of the one before it."""
        step = max(self.steps.begun, self._pushes.begun)
        return step, f"step {step - 1} of key {self.spec.key!r} has begun"

    def check(self, slot: int, step: int, *, pushes: bool) -> None:
        """Raises PushRefusedError where a slot's gradient, or its word that it has none, contradicts what is there."""
        where = self.spec.where(slot, step)
        self.steps.check(slot, step, where, pushes=pushes)
        if not pushes:
            self._pushes.check_nothing(slot, step, where)

    def accept(self, slot: int, step: int, gradient: Rows | None) -> bool:
        """Takes in what `check` lets pass: a slot's gradient, or None for nothing. What is taken over is written later.

        True if `merging` may now have something to do. What was in before changes nothing: exactly once holds.
        """
        gradient = None if gradient is None else self._own(gradient)
        self._waiting_bytes += gradient.nbytes if gradient is not None else 0
        return self.steps.accept(slot, step, gradient)

    def accept_run(self, slot: int, step: int, run: ChunkRun, chunks: int) -> bool:
        """Takes in a run of a push of so many chunks, as `accept` does: the slot is in when all its chunks are. Raises
        PushRefusedError where it contradicts what is there, or itself."""
        where = self.spec.where(slot, step)
        self.steps.check(slot, step, where, pushes=True)
        new = self._pushes.fitting(slot, step, run, chunks, where)
        if self.steps.is_over(slot, step):
            return False
        rows = self._pushes.add(slot, step, new, chunks)
        return rows is not None and self.accept(slot, step, rows)

    def accept_set(self, version: int, value: Rows, origin: Hashable) -> bool:
        """Takes in what `sets.check` lets pass, once. True if pulls or a merge may have waited for it."""
        value = self._own(value)
        taken = self.sets.accept(version, value, origin, is_changing=self._changing)
        if taken is Taken.NOW:
            self._put(value)
        elif taken is Taken.FIRST:
            self._fill(value)
        elif taken is Taken.BEHIND_UPDATE:
            instead = self.sets.relieve()
            if instead is not None:
                self._put(instead)
        return taken is not Taken.AGAIN and taken is not Taken.WAITS

    def merging(self) -> Generator[None, None, bool]:
        """Adds what has come, and makes the next update if it is due; stops after each piece. True if it made one.

        Raises RuleFailedError, and MemoryError where sums find none: it cannot go on then.
        """
        self._waiting_bytes = 0
        while (size := self.steps.merge_next()) is not None:
            if size >= PIECE_ELEMENTS:
                yield
        complete = self.steps.due()
        if complete is None or self._lacks_for(complete.total):
            return False
        if self.spec.hold is not None and self.spec.hold.holds(complete.step):
            return False
        if self._gate is not None:
            judged = yield from self._gate.passing(complete)
            if judged is None:
                return False
            complete = judged
        self._changing = True
        self.sets.reached = self.version + 1 if self.spec.mode is Mode.SYNC else 0
        if complete.total is not None or self.spec.update is Update.GRADIENT:
            yield from self._apply(complete)
        if complete.total is not None:
            self.updates += 1
            if self.applied is not None and complete.slot is not None:
                self.applied(complete.slot, complete.step)
        self.steps.advance()
        for value in self.sets.due():
            self._put(value)
            yield
        self._changing = False
        if self.reached is not None:
            self.reached(self.version)
        return True

    def passed_version(self, version: int) -> bool:
        """Whether what it was at a version is not to be had any more; a key to which nobody contributes is at every
        version."""
        now = self.sets.reached if self._changing else self.version
        return bool(self.spec.slots) and now > version

    def is_quiet_at(self, version: int) -> bool:
        """Whether it is at a version, with no update under way."""
        return not self._changing and (self.version == version or not self.spec.slots)

    def begin_at(self, version: int, updates: int) -> None:
        """Has a unit that nobody has pushed to begin at a version, after so many updates. Steps are of all slots."""
        self.updates = updates
        if self.spec.slots:
            self.steps.counts.begin_at(version, 0, 1)

    def answered_version(self, wait: PullWait) -> int:
        """The version that an answer to a pull tells."""
        return max(self.steps.seen(wait.slot, settled=wait.settled), wait.version)

    def can_answer(self, wait: PullWait) -> bool:
        if self._changing or not self.steps.is_at(wait.version, wait.slot, settled=wait.settled):
            return False
        if wait.reading is Reading.EXACT and self.version != wait.version and self.spec.slots:
            return False
        return not self.lacks(wait)

    def passed(self, wait: PullWait) -> str | None:
        """Why a pull of an exact version can never be answered, once it is beyond it."""
        if wait.reading is not Reading.EXACT or self.version <= wait.version or not self.spec.slots:
            return None
        return f"key {self.spec.key!r} is at version {self.version}: it has passed"

    def answerable(self) -> list[PullWait]:
        """The pulls that can be answered now; it keeps the others."""
        return self.waits.take(self.steps.newest, self.can_answer)

    def wait_for(self, wait: PullWait) -> None:
        """A pull that cannot be answered now."""
        slots = self.spec.slots
        counts = slots and (self.spec.mode is Mode.SYNC or wait.settled or wait.slot in slots)
        self.waits.add(wait, wait.version if counts else 0)  # Others see what there is.

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: what the old one pushed and is not merged is forgotten."""
        self.steps.replace(slot, keep_due=self._changing)
        self._pushes.drop(slot)

    def waits_for(self, wait: PullWait) -> tuple[str, list[int]]:
        """What an open pull waits for, in words, and the slots that are missing."""
        key = f"key {self.spec.key!r}"
        if self.steps.is_at(wait.version, wait.slot, settled=wait.settled):
            return (f"{key} was never set" if self.lacks(wait) else f"{key} is being answered"), []
        due = self.steps.due()
        if due is not None:
            if self._lacks_for(due.total):
                return f"{key} was never set", []
            if self.spec.hold is not None and self.spec.hold.holds(due.step):
                return f"{key} has seen {self.version} steps; step {due.step} waits for {self.spec.hold.told()}", []
            at_gate = None if self._gate is None else self._gate.missing(due.step)
            if at_gate is not None:
                return f"{key} has seen {self.version} steps; {at_gate[0]}", at_gate[1]
        text, missing = self.steps.missing(wait.version, wait.slot, settled=wait.settled)
        return f"{key} {text}", missing

    @property
    def nbytes(self) -> int:
        """Bytes that a merge works on."""
        return self._waiting_bytes

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the values, were every row touched; of a growing table, of those that one call may name."""
        return self.cut.bytes_on(self.shard)

    @property
    def touched(self) -> int:
        """How many rows have come into being, and have not gone."""
        return self._table.rows.count

    @property
    def dropped(self) -> int:
        """Rows of gradients that were dropped, for their ids were not admitted."""
        return self._table.dropped

    @property
    def held(self) -> HeldRows:
        return self._table.rows

    def _own(self, rows: Rows) -> Rows:
        """Ids as the table has them: a caller's int64 may name rows of a growing one."""
        wanted = self.cut.id_dtype
        if rows.parts[0][0].dtype == wanted:
            return rows
        return Rows.of([(ids.view(wanted), values) for ids, values in rows.parts])

    def answers(self, wait: PullWait) -> Iterator[Answer | None]:
        """What answers a pull that can be answered; None after each piece."""
        places = np.zeros(0, self.cut.id_dtype) if wait.ids is None else wait.ids
        a_chunk, a_piece = self.cut.rows_down, self._table.a_piece
        together = max(a_piece // a_chunk, 1) * a_chunk
        version = self.answered_version(wait)
        read = partial(self._table.reading, of=len(places), version=self.version)
        for number, name in enumerate(self.spec.state if wait.state else (None,)):
            for low in range(0, max(len(places), 1), together):
                some = places[low : low + together]
                if len(some) <= a_piece:
                    array = yield from read(name, some)
                    yield None
                else:
                    array = np.empty((len(some), self.cut.width), self.cut.dtype)
                    for begin in range(0, len(some), a_piece):
                        piece = slice(begin, begin + a_piece)
                        array[piece] = yield from read(name, some[piece])
                        yield None
                chunks = np.arange(chunks_of(len(some), a_chunk) + 1)
                bounds = np.minimum(chunks * a_chunk * self.cut.row_bytes, array.nbytes)
                source, first = OneBuffer(bytes_of(array)), low // a_chunk
                yield Answer(number, self.spec.bucket, version, first, bounds, source, None, self.spec.priority)

    def is_one_piece(self, wait: PullWait) -> bool:
        """Whether the answer is small enough to be given in one go."""
        if wait.ids is None:
            return True
        arrays = len(self.spec.state) if wait.state else 1
        return len(wait.ids) * arrays <= self._table.a_piece and not self._table.is_long(wait.ids)

    def lacks(self, wait: PullWait) -> bool:
        """Whether something that the pull asks for has never been set."""
        return wait.ids is not None and self.lacks_rows(wait.ids)

    def lacks_rows(self, places: Array) -> bool:
        """Whether some of these rows are to be set, and never were."""
        return self.spec.given and not self._table.rows.has_all(places)

    def reading(self, places: Array, name: str | None) -> Generator[None, None, Array]:
        """Rows (n, width) as they are now, or their state of that name; stops after each piece."""
        return self._table.reading(name, places, of=len(places), version=self.version)

    def _lacks_for(self, total: Rows | None) -> bool:
        """Whether a step with this total cannot be gone through, for something was never set."""
        if not self.spec.given or total is None:
            return False
        return not all(self._table.rows.has_all(ids) for ids, _ in total.parts)

    def _fill(self, value: Rows) -> None:
        """Takes what of a value at version 0 has never been set; the rest has gone on since."""
        self._table.fill(value, self._moment(self.version))

    def _put(self, value: Rows) -> None:
        self._table.put(value, self._moment(self.version))

    def _apply(self, complete: Complete) -> Iterator[None]:
        return self._table.apply(complete, self._moment(complete.step), self.updates + 1)

    def _moment(self, step: int) -> int:
        """What a row's age is told by: the step, or in async, where each slot has its own, the updates so far."""
        return step if self.spec.mode is Mode.SYNC else self.updates

    def close(self) -> None:
        """Gives back what lies on disk."""
        self._table.rows.close()
