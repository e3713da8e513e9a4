"""A table on one shard: what is pushed to it, set and pulled of it, step by step; and how far it may grow. Pure."""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from typing import Final

import numpy as np

from weft_kernels.rules.replay import WORK_ELEMENTS
from weft_kvstore.arrays import Array, bytes_of
from weft_kvstore.bucket.bucket import PIECE_BYTES, PIECE_ELEMENTS, Answer, PullWait, Work
from weft_kvstore.bucket.update import RULE_ERRORS
from weft_kvstore.description.records import Mode, Sparse
from weft_kvstore.rows.arrays import RowHistory
from weft_kvstore.rows.memory import TablePlace
from weft_kvstore.rows.rows import Rows, is_ascending
from weft_kvstore.rows.storage import Draw, TableRows
from weft_kvstore.sharding import RowCut, chunks_of
from weft_kvstore.tables.steps import (
    ChunkRun,
    RowPushes,
    TableGate,
    TableSets,
    TableSpec,
    TableSteps,
)
from weft_kvstore.wire.messages import Reading
from weft_kvstore.wire.outbox import OneBuffer

MakeRows = Callable[[Array], Array]
"""make(rows): the first values (n, width) of the table's rows (n) int64."""


# --- Pulls of a table that cannot be answered yet ---------------------------------------------------------------------


LEAST_WAITS: Final = 64
"""Pulls that may wait before those that were given up are looked for."""


class WaitingPulls:
    """By the version that they wait for, and in the order in which they came. Of those that were given up no more are
    kept than there are others, or `LEAST_WAITS`."""

    __slots__ = ("_came", "_most", "_waits")

    def __init__(self) -> None:
        self._waits: list[tuple[int, int, PullWait]] = []
        self._most = LEAST_WAITS
        self._came = 0

    def __len__(self) -> int:
        return len(self._waits)

    def __iter__(self) -> Iterator[PullWait]:
        return (wait for _, _, wait in sorted(self._waits))

    def add(self, wait: PullWait, version: int) -> None:
        """One more, which cannot be answered before a version."""
        self._came += 1
        heapq.heappush(self._waits, (version, self._came, wait))
        if len(self._waits) > self._most:  # A peer that asks and gives up again must not fill the memory.
            self._waits = [one for one in self._waits if not one[2].dropped]
            heapq.heapify(self._waits)
            self._most = max(2 * len(self._waits), LEAST_WAITS)

    def take(self, version: int, is_ready: Callable[[PullWait], bool]) -> list[PullWait]:
        """Those that can be answered at a version, which wait no more. Others than of it and before are not looked
        at."""
        ready: list[PullWait] = []
        kept: list[tuple[int, int, PullWait]] = []
        while self._waits and self._waits[0][0] <= version:
            one = heapq.heappop(self._waits)
            wait = one[2]
            if wait.dropped:
                continue
            if is_ready(wait):
                ready.append(wait)
            else:
                kept.append(one)
        for one in kept:
            heapq.heappush(self._waits, one)
        return ready


# --- A table's rows on one shard: what is pushed to them, set and pulled of them, step by step ------------------------
# Rows are named by their place on the shard, ascending; of a growing table that is the id. They come into being when
# they are first pushed or set: before, a row takes no memory, and its first value is computed when it is read. The rule
# runs on the touched rows alone; with standard semantics the others get what they have missed when they are next met.


class TableState(Work):
    """`rows` says where rows are and what they hold, of which `a_piece` are read at once. `updates` counts the steps
    that changed it, and `dropped` the rows of gradients that were dropped, for their ids were not admitted. An update
    is made in pieces, and what is half made is shown to nobody: `_changing` while it is, and no pull can be answered.
    `merge_is_due` while a merge is among what is to be done.

    Invariant: `_waiting_bytes` are those of gradients that came since a merge began.
    """

    __slots__ = (
        "_changing",
        "_first",
        "_gate",
        "_pushes",
        "_waiting_bytes",
        "a_piece",
        "applied",
        "cut",
        "dropped",
        "merge_is_due",
        "reached",
        "rows",
        "sets",
        "shard",
        "spec",
        "steps",
        "updates",
        "waits",
    )

    def __init__(
        self,
        spec: TableSpec,
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
        and OSError where no file can be made at the place."""
        super().__init__(spec.priority)
        self.spec = spec
        self.cut = cut
        self.shard = shard
        staleness = spec.staleness if spec.mode is Mode.STALE else None
        self.steps = TableSteps(spec.slots, spec.merge, together=spec.together, staleness=staleness)
        self.waits = WaitingPulls()
        self.updates = self.dropped = 0
        self.applied: Callable[[int, int], None] | None = None
        """Told (slot, step) of each slot's gradient that is applied by itself, where somebody asks."""
        self.reached: Callable[[int], None] | None = None
        """Told each version that it has come to, where somebody asks."""
        self.merge_is_due = False
        self._gate = None if spec.gate is None else TableGate(spec.gate)
        self._changing = False
        self._pushes = RowPushes(cut.rows_up)
        self._waiting_bytes = 0
        self._first = first
        start = {name: spec.rule.state[name] for name in spec.state}
        count = cut.rows_on[shard] if cut.growth is None else None
        self.rows = TableRows(
            cut.width,
            cut.dtype,
            start,
            rows=count,
            growth=cut.growth,
            salt=secrets.randbits(64) if salt is None else salt,
            draw=draw,
            place=place,
            history=RowHistory(spec.rule, cut.dtype, count) if sparse is Sparse.STANDARD and spec.slots else None,
        )
        self.a_piece = min(max(PIECE_ELEMENTS // max(cut.width, 1), 1), self.rows.arrays.at_once or PIECE_ELEMENTS)
        self.sets = TableSets(spec, self.steps, self, self.a_piece)

    @property
    def version(self) -> int:
        return self.steps.version

    @property
    def piece_bytes(self) -> int:
        is_long = self._changing or len(self.todo) > int(self.merge_is_due)  # beside a merge there are long answers
        return PIECE_BYTES if is_long else min(self._waiting_bytes, PIECE_BYTES)

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
        if gradient is not None:
            gradient = self._own(gradient)
            self._waiting_bytes += gradient.nbytes
        return self.steps.accept(slot, step, gradient)

    def accept_run(self, slot: int, step: int, run: ChunkRun, chunks: int) -> bool:
        """Takes in a run of a push of so many chunks, as `accept` does: the slot is in when all its chunks are. Raises
        PushRefusedError where it contradicts what is there, or itself."""
        ids, values = run.rows.parts[0]
        if run.stop - run.first == chunks and self._pushes.is_empty and is_ascending(ids):
            is_due = self.steps.take_next(slot, step, run.rows)  # As nearly all are: whole, and in order.
            if is_due is not None:
                self._waiting_bytes += ids.nbytes + values.nbytes
                return is_due
        where = self.spec.where(slot, step)
        self.steps.check(slot, step, where, pushes=True)
        new = self._pushes.fitting(slot, step, run, chunks, where)
        if self.steps.is_over(slot, step):
            return False
        whole = self._pushes.add(slot, step, new, chunks)
        return whole is not None and self.accept(slot, step, whole)

    def accept_set(self, version: int, value: Rows, origin: Hashable) -> bool:
        """Takes in what `sets.check` lets pass, once. True if pulls or a merge may have waited for it."""
        return self.sets.accept(version, self._own(value), origin, is_changing=self._changing)

    def merging(self) -> Generator[None, None, bool]:
        """Adds what has come, and makes the next update if it is due; stops after each piece. True if it made one.

        Raises RuleFailedError, and MemoryError where sums find none: it cannot go on then.
        """
        self._waiting_bytes = 0
        while (size := self.steps.merge_next()) is not None:
            if size >= PIECE_ELEMENTS:
                yield
        complete = self.steps.due()
        if complete is None or (self.spec.given and self._lacks_for(complete.total)):
            return False
        if self.spec.hold is not None and self.spec.hold.holds(complete.step):
            return False
        if self._gate is not None:
            judged = yield from self._gate.passing(complete)
            if judged is None:
                return False
            complete = judged
        self._changing = True
        self.sets.reached = self.steps.version + 1 if self.spec.together else 0
        if complete.total is not None:
            yield from self._apply(complete.step, complete.total)
            self.updates += 1
            if self.applied is not None and complete.slot is not None:
                self.applied(complete.slot, complete.step)
        self.steps.advance()
        yield from self.sets.put_due()
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
            self.steps.begin_at(version)

    def answered_version(self, wait: PullWait) -> int:
        """The version that an answer to a pull tells."""
        return max(self.steps.seen(wait.slot, settled=wait.reading is Reading.SETTLED), wait.version)

    def can_answer(self, wait: PullWait) -> bool:
        settled = wait.reading is Reading.SETTLED
        if self._changing or not self.steps.is_at(wait.version, wait.slot, settled=settled):
            return False
        if wait.reading is Reading.EXACT and self.version != wait.version and self.spec.slots:
            return False
        return not (self.spec.given and self.lacks(wait))

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
        counts = slots and (self.spec.together or wait.settled or wait.slot in slots)
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
        return self.rows.count

    def _own(self, rows: Rows) -> Rows:
        """Ids as the table has them: a caller's int64 may name rows of a growing one."""
        wanted = self.cut.id_dtype
        if rows.parts[0][0].dtype == wanted:
            return rows
        return Rows.of([(ids.view(wanted), values) for ids, values in rows.parts])

    def answers(self, wait: PullWait) -> Iterator[Answer | None]:
        """What answers a pull that can be answered; None between two pieces."""
        places = np.zeros(0, self.cut.id_dtype) if wait.ids is None else wait.ids
        a_chunk, a_piece, has_begun = self.cut.rows_down, self.a_piece, False
        together = max(a_piece // a_chunk, 1) * a_chunk
        version = self.answered_version(wait)
        is_plain = self.rows.history is None
        for number, name in enumerate(self.spec.state if wait.state else (None,)):
            for low in range(0, max(len(places), 1), together):
                if has_begun:
                    yield None
                has_begun = True
                some = places[low : low + together]
                if len(some) <= a_piece:
                    array = self._as_they_are(some, name) if is_plain else (yield from self.reading(some, name))
                else:
                    array = np.empty((len(some), self.cut.width), self.cut.dtype)
                    for begin in range(0, len(some), a_piece):
                        if begin:
                            yield None
                        piece = slice(begin, begin + a_piece)
                        array[piece] = yield from self.reading(some[piece], name)
                chunks = np.arange(chunks_of(len(some), a_chunk) + 1)
                bounds = np.minimum(chunks * a_chunk * self.cut.row_bytes, array.nbytes)
                source, first = OneBuffer(bytes_of(array)), low // a_chunk
                yield Answer(number, self.spec.number, version, first, bounds, source, None, self.spec.priority)

    def is_one_piece(self, wait: PullWait) -> bool:
        """Whether the answer is small enough to be given in one go."""
        if wait.ids is None:
            return True
        arrays = len(self.spec.state) if wait.state else 1
        if len(wait.ids) * arrays > self.a_piece:
            return False
        return self.rows.history is None or not self.is_long(wait.ids)

    def is_long(self, places: Array) -> bool:
        """Whether reading these rows takes more than a piece of work, for they have missed too many updates."""
        history = self.rows.history
        return history is not None and history.work_of(self.rows.find(places), self.cut.width) > WORK_ELEMENTS

    def lacks(self, wait: PullWait) -> bool:
        """Whether something that the pull asks for has never been set."""
        return wait.ids is not None and self.lacks_rows(wait.ids)

    def lacks_rows(self, places: Array) -> bool:
        """Whether some of these rows are to be set, and never were."""
        return self.spec.given and not self.rows.has_all(places)

    def _lacks_for(self, total: Rows | None) -> bool:
        """Whether a step with this total cannot be gone through, for something was never set."""
        if not self.spec.given or total is None:
            return False
        return not all(self.rows.has_all(ids) for ids, _ in total.parts)

    def fill(self, value: Rows) -> None:
        """Sets those of these rows that were never set: the others have gone on since."""
        new = self.rows.find(value.ids) < 0
        numbers = self.rows.bring(value.ids[new], self._moment(self.version), None)
        self.rows.arrays.write(None, numbers, value.values[new])

    def put(self, value: Rows) -> None:
        """Sets rows."""
        arrays, history, moment = self.rows.arrays, self.rows.history, self._moment(self.version)
        if history is None:
            arrays.write(None, self.rows.bring(value.ids, moment, None), value.values)
            return
        # Their state has seen the updates that passed them by: all but that of rows that were never set before.
        given = self.spec.given
        known = self.rows.find(value.ids) >= 0 if given else np.ones(len(value.ids), np.bool_)
        numbers = self.rows.bring(value.ids, moment, None if given else self._made)
        if self.spec.state:
            for _ in history.catching_up(arrays, numbers[known]):
                pass
        arrays.write(None, numbers, value.values)
        history.saw_all(numbers)

    def reading(self, places: Array, name: str | None) -> Generator[None, None, Array]:
        """Rows (n, width) as they are now, or their state of that name; stops after each piece. Raises
        RuleFailedError."""
        history, arrays = self.rows.history, self.rows.arrays
        if history is None:
            return self._as_they_are(places, name)
        # Updates have passed rows by: those that are here are brought up to date for good.
        with self.spec.rule_runs(self.version):
            numbers = self.rows.find(places)
            lacks = numbers < 0
            there = numbers[~lacks]
            yield from history.catching_up(arrays, there)
            found = np.empty((len(places), self.cut.width), self.cut.dtype)
            if len(there):
                found[~lacks] = arrays.read(name, there)
            if lacks.any() and not self.spec.given:
                first = self._made(places[lacks])
                state = yield from history.aging(first)
                found[lacks] = first if name is None else state[name]
            return found

    def _as_they_are(self, places: Array, name: str | None) -> Array:
        """The same where no updates pass rows by."""
        found, lacks = self.rows.read(name, places)
        if lacks is None or not lacks.any():
            return found
        if name is not None:
            found[lacks] = self.spec.rule.state[name]
        elif not self.spec.given:
            found[lacks] = self._made(places[lacks])
        return found

    def _apply(self, step: int, rows: Rows) -> Iterator[None]:
        """Makes the table's update, number `updates` + 1; stops after each piece. Raises RuleFailedError,
        MemoryError."""
        moment, history = self._moment(step), self.rows.history
        piece = min(max(self.spec.a_piece // max(self.cut.width, 1), 1), self.a_piece)
        behind: list[tuple[Array, Array]] = []
        is_long = len(rows) > piece
        first = None if self.spec.given else self._made
        for ids, gradient in rows.pieces(piece):
            admitted = self.rows.admitted(ids, moment)
            if admitted is not None and not admitted.all():
                self.dropped += len(ids) - int(np.count_nonzero(admitted))
                ids, gradient = ids[admitted], gradient[admitted]  # noqa: PLW2901  # the others are not looked at
            numbers = self.rows.bring(ids, moment, first)
            if history is None:
                self._update(numbers, gradient, step)
            else:
                with self.spec.rule_runs(step):
                    yield from history.catching_up(self.rows.arrays, numbers)
                behind.append((numbers, gradient))
            if is_long:
                yield
        if history is not None:
            yield from self._updating(history, behind, step, moment)
        yield from self.rows.boundary(moment + 1)

    def _update(self, numbers: Array, gradient: Array, step: int) -> None:
        spec = self.spec
        try:
            hyper = spec.hyper.constant
            hyper = spec.hyper.at(step) if hyper is None else hyper
            self.rows.arrays.apply(spec.rule, numbers, gradient, step=self.updates + 1, hyper=hyper)
        except RULE_ERRORS as error:
            raise spec.failed(step, error) from error

    def _updating(
        self, history: RowHistory, parts: Sequence[tuple[Array, Array]], step: int, moment: int
    ) -> Iterator[None]:
        """Updates rows that have seen all that was before, and brings some of the others closer."""
        with self.spec.rule_runs(step):
            history.append(self.spec.hyper.at(step))
        for numbers, gradient in parts:
            self._update(numbers, gradient, step)
            history.saw_all(numbers)
            if len(parts) > 1:
                yield
        # A row of a growing table that is not here has no past, and one that is to be given has no value.
        comes = self.cut.growth is None and not self.spec.given
        bring = (lambda rows: self.rows.bring(rows, moment, self._made)) if comes else None
        with self.spec.rule_runs(step):
            yield from history.sweeping(self.rows.arrays, self.rows.stop, bring)

    def _made(self, places: Array) -> Array:
        """First values of rows that are not here (n, width)."""
        return self._first(self.cut.ids_at(self.shard, places))

    def _moment(self, step: int) -> int:
        """What a row's age is told by: the step, or in async, where each slot has its own, the updates so far."""
        return step if self.spec.together else self.updates

    def close(self) -> None:
        """Gives back what lies on disk."""
        self.rows.close()
