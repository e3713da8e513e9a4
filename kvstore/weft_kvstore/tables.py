"""A table on one shard: rows that are pushed, set and pulled, step by step. Pure.

A push of rows comes in chunks. Once every slot's push of a step is in, the rows are added up and the update rule
changes those rows alone. Which rows there are, and where, is in `rows`; steps and pulls are those of a bucket of one
slice.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_kernels.rules.record import Hyper
from weft_kernels.rules.replay import WORK_ELEMENTS
from weft_kvstore.arrays import Alike, Array, Range, Segment, bytes_of, exact_sum
from weft_kvstore.bucket.sets import check_version
from weft_kvstore.bucket.steps import RULE_ERRORS, AnswerEntry, AnswerSegment, BucketSteps, PullWait, UpdateSpec
from weft_kvstore.bucket.update import PIECE_ELEMENTS
from weft_kvstore.description.records import Merge, Sparse
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.rows.growing_array import TablePlace
from weft_kvstore.rows.row_arrays import RowHistory
from weft_kvstore.rows.rows import Chunks, Rows, batches, last_rows, merging, own_rows
from weft_kvstore.rows.storage import Draw, FirstOf, RowStorage
from weft_kvstore.sharding import RowLayout
from weft_kvstore.wire.codec import PushSegment, RowReader
from weft_kvstore.wire.messages import PayloadKind
from weft_kvstore.wire.outbox import CALL_PRIORITY, BufferSource, OutSegment

# --- How a table is merged and updated --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec(UpdateSpec):
    """`given`: no initializer makes the first value; a slot sets it."""

    key: str
    priority: int
    given: bool

    def key_named(self, slice_: int) -> str:
        return f"key {self.key!r}"

    @contextmanager
    def rule_runs(self, step: int) -> Iterator[None]:
        """Around a call of the rule: raises JobFailedError for an error that the rule's numbers may cause."""
        try:
            yield
        except RULE_ERRORS as error:
            raise self.failed(step, error) from error


# --- The rows that a pull of a table asks for -------------------------------------------------------------------------


class RequestedRows:
    """The rows that a pull asks a table for: `ids` are their indices on this shard (n), once all `chunks` of them have
    come, which have `nbytes`. `are_pushed`: they are the rows that the same request pushes; then `chunks` is 0 before
    the first segment of those has come."""

    __slots__ = ("_partial", "are_pushed", "chunks", "ids", "nbytes", "table")

    def __init__(self, table: Any, chunks: int) -> None:
        """`table` is a `TableState`."""
        self.table = table
        self.chunks = chunks
        self.are_pushed = not chunks
        self.ids: Array | None = None
        self.nbytes = 0
        self._partial: Chunks | None = None

    def add(self, pushed: PushSegment, chunk_rows: int, ids: Array) -> bool:
        """Adds a segment of chunks of the ids; each chunk counts once. True when these were the last that were missing.
        Raises PushRefusedError where they do not ascend."""
        if self.ids is not None:
            return False
        self.chunks = pushed.chunks
        segments: Sequence[tuple[Array]] = [(ids,)]
        if pushed.count < pushed.chunks:
            self._partial = self._partial or Chunks(pushed.chunks)
            segments = self._partial.add(pushed.first, pushed.count, chunk_rows, (ids,), "ids of a pull")
        self.nbytes += ids.nbytes
        if not segments:
            return False
        self.ids = ids if len(segments) == 1 else np.concatenate([one for (one,) in segments])
        self._partial = None
        return True


# --- A table ----------------------------------------------------------------------------------------------------------


class TableState(BucketSteps):
    """A bucket of one slice, whose elements are lists of `Rows`.

    Rows are named by their index on the shard; of a growing table that is the id. A row takes memory once it is
    pushed or set: before, its first value is computed when it is read. The rule runs on the pushed rows alone; with
    standard semantics the others get what they have missed when they are next pushed or read.

    `updates` counts the steps that changed it. An update is made in pieces, and what is half made is shown to nobody:
    while one is made no pull can be answered, and `begins` has the number of a slot and the version that it makes.
    `merge_is_due` where something may have to be merged. `_pending_sets` has by that the values that were set for a
    version to come, or during its update; `_measured` the last step whose gradient the gate was given.

    In sync mode gradients are added in slot order: the longest complete prefix at once, while later ones
    wait, so that the sum is the same bits for any order of arrival; or in the order of arrival. `_total` is the sum of
    those of the next step that are added. `partial_pushes` has pushes of which not all chunks have come, by number of
    the slot and step.
    """

    def __init__(
        self,
        spec: TableSpec,
        layout: RowLayout,
        shard: int,
        first: Callable[[Array], Array],
        *,
        sparse: Sparse = Sparse.LAZY,
        draw: Draw | None = None,
        place: TablePlace | None = None,
        salt: int | None = None,
    ) -> None:
        """`first(ids)` makes the first values (n, width) of rows, and `draw` the numbers by which a growing table
        admits; `salt` says where ids lie in its index: it changes no value, and nobody else should know it. Raises
        MemoryError where not even the addresses are to be had, and OSError where no file can be made at the place."""
        super().__init__(spec, np.arange(2))
        self.spec: TableSpec = spec
        self.layout = layout
        self.shard = shard
        self.reader = RowReader(layout, shard, spec.key)
        self.check_segment = self.reader.check
        self.partial_pushes: dict[tuple[int, int], Chunks] = {}
        self._total: list[Rows] | None = None
        self.piece_rows = max(PIECE_ELEMENTS // max(layout.width, 1), 1)
        self.updates = 0
        self.merge_is_due = self.has_task = False
        self.to_answer: deque[tuple[PullWait, int]] = deque()
        """Pulls whose answers take long, each with its version. `has_task`: the merger is at work on the table."""
        self.begins: tuple[int, int] | None = None
        self.updated: list[tuple[Array, Array]] = []
        """Indices and values of rows as the last update left them, while nothing else has written rows since: who has
        pushed rows most often pulls these."""
        self._made: FirstOf = lambda indices: first(layout.ids_at(shard, indices))
        """The first values of rows that are not here."""
        self._measured = -1
        self._pending_sets: dict[tuple[int, int], list[Rows]] = {}
        count = layout.rows_on(shard) if layout.growth is None else None
        self.rows = RowStorage(
            layout.width,
            layout.dtype,
            {name: spec.rule.state[name] for name in spec.state},
            rows=count,
            growth=layout.growth,
            salt=secrets.randbits(64) if salt is None else salt,
            draw=draw,
            place=place,
            history=RowHistory(spec.rule, layout.dtype, count) if sparse is Sparse.STANDARD and spec.slots else None,
        )

    @property
    def version(self) -> int:
        """How many steps of every slot are applied."""
        return int(self.versions[0])

    def at_version(self, version: int) -> tuple[Array, Array]:
        is_at, is_beyond = super().at_version(version)
        if self.begins is None:
            return is_at, is_beyond
        return np.zeros(1, np.bool_), is_beyond | (is_at if self.spec.is_sync and self.spec.slots else False)

    def begin_at(self, version: int, updates: int) -> None:
        """A table that nobody has pushed begins at a version, after so many updates."""
        self.updates = updates
        if self.spec.slots:
            self.begin_steps_at(version, 0, 1)

    # --- Pushes

    def push_rows(self, slot: int, step: int, ids: Array, values: Array, pushed: PushSegment) -> bool:
        """Adds a segment of chunks of a push, each of which counts once: the push has arrived when all its chunks have.
        True if there may be something to merge now. Raises PushRefusedError where it contradicts what is there, or
        itself."""
        whole: Sequence[Rows] = [Rows(ids, values)]
        if pushed.count < pushed.chunks or self.partial_pushes:
            self.check(slot, step, 0, 1, pushes=True)
            of, where = (self.indices[slot], step), self._where(slot, step, 0)
            if step < self.arrived[of[0], 0] or of in self._waiting:
                return False
            push = self.partial_pushes.setdefault(of, Chunks(pushed.chunks))
            if push.count != pushed.chunks:
                raise PushRefusedError(f"{where}: a push of {push.count} chunks before and of {pushed.chunks} now")
            whole = [
                Rows(*segment)
                for segment in push.add(pushed.first, pushed.count, self.layout.rows_up, (ids, values), where)
            ]
            if not whole:
                return False
            del self.partial_pushes[of]
        self.push(slot, step, [Segment(0, 1, whole)])
        return not self.spec.is_sync or step == self.version

    def check(self, slot: int, step: int, first: int, stop: int, *, pushes: bool) -> None:
        if not pushes and (self.indices.get(slot), step) in self.partial_pushes:
            raise PushRefusedError(f"{self._where(slot, step, first)}: the slot pushed before and declares nothing now")
        super().check(slot, step, first, stop, pushes=pushes)

    def is_untouched(self, first: int, stop: int) -> bool:
        return not self.partial_pushes and super().is_untouched(first, stop)

    def replace(self, slot: int) -> None:
        index = self.indices.get(slot)
        self.partial_pushes = {of: push for of, push in self.partial_pushes.items() if of[0] != index}
        super().replace(slot)

    def _adding(self, step: int) -> Iterator[int]:
        """Adds up the gradients of the next step that have arrived and are next in order. Yields often, each time with
        how many elements it has used since. It removes what it adds from what waits, so it has to run to its end."""
        while self.spec.is_sync and self._waiting:  # In another mode each gradient is an update of its own.
            index = int(np.count_nonzero(self.added > step))
            if self.spec.merge is Merge.ARRIVAL:
                index = next(iter(self._order(step)), -1)
            if (index, step) not in self._waiting:
                return
            gradient = self._take(index, step)
            if gradient is not None:
                self._total = gradient if self._total is None else (yield from merging(self._total, gradient))

    def _take(self, index: int, step: int) -> list[Rows] | None:
        """Removes a slot's gradient, or its word that it has none, and counts it as added."""
        gradient: list[Rows] | None = self._waiting.pop((index, step)).segments[0].elements
        self.pushed[index] = gradient is not None
        self.added[index] = step + 1
        return gradient

    def _next(self) -> list[tuple[int, int, list[Rows] | None]]:
        """What can be applied next, once `_adding` has run: (number of a slot, step, gradient). In sync mode it is the
        sum of the step's gradients, None where there was none; else each slot's next gradient, in order of arrival,
        which is not removed."""
        if self.spec.is_sync:
            step = self.version
            return [(0, step, self._total)] if min(self.added.ravel().tolist(), default=0) > step else []
        return [
            (index, step, pending.segments[0].elements)
            for (index, step), pending in self._waiting.items()
            if self.added[index, 0] == step
        ]

    # --- Updates

    def merging(self) -> Generator[None, None, bool]:
        """Adds up what has arrived, and makes the next update if it is due; yields after each piece. True if it made
        one.

        Raises JobFailedError, and MemoryError where sums find none: it cannot go on then.
        """
        used, version = 0, self.version
        for elements in self._adding(version):
            used += elements
            if used >= PIECE_ELEMENTS:
                used = 0
                yield
        due = self._next()
        if self.spec.given:  # A slot that waits for first values holds up no other.
            due = [one for one in due if not self._lacks_rows(one[2])]
        if not due or self.was_set is not None:  # What waits for values that were set meanwhile is answered first.
            return False
        index, step, total = due[0]
        if self.spec.gate is not None:
            if self._measured != step:
                yield from self._measure(step, total)
            committed = self.spec.gate.committed(step)
            if committed is None:
                return False
            if committed.factor is None:
                total = None
            elif total is not None:
                yield from self._multiply(total, committed.factor)
        self.begins = index, step + 1
        if not self.spec.is_sync:
            self._take(index, step)
        if total is not None:
            yield from self._apply(step, total)
            self.updates += 1
        self._total = None
        self.versions[0] = min(self.added.ravel().tolist())
        yield from self._apply_sets(self.begins) if self._pending_sets else ()
        self.begins = None
        if self.reached is not None:
            self.reached(self.version, 0, 1)
        return True

    def _lacks_rows(self, gradient: list[Rows] | None) -> bool:
        """Whether an update has to wait, since some of its rows were never set."""
        return any(self.has_uninitialized(run.ids) for run in gradient or ())

    def has_uninitialized(self, indices: Array) -> bool:
        """Whether some of these rows are uninitialized."""
        return self.spec.given and bool((self.rows.find(indices) < 0).any())

    def _measure(self, step: int, total: list[Rows] | None) -> Iterator[None]:
        """Reports to the gate the exact sum of the squares of each row; None where that is not finite."""
        gate = self.spec.gate
        assert gate is not None
        squares: int | None = 0
        if total is not None:
            yield from self._multiply(total, 1.0 / gate.loss_scale.scale)
            some = batches(total, self.piece_rows)
            for run in some:
                exact = exact_sum(np.square(run.values, dtype=np.float64).sum(axis=1))
                if exact is None or squares is None:
                    squares = None
                    break
                squares += exact
                if len(some) > len(total):
                    yield
        self._measured = step
        gate.hold(step, squares)

    def _multiply(self, total: list[Rows], factor: float) -> Iterator[None]:
        if factor == 1.0:
            return
        most = self.piece_rows
        for run in total:
            for low in range(0, len(run.ids), most):
                values = run.values[low : low + most]  # A view; `batches` may copy.
                np.multiply(values, values.dtype.type(factor), out=values)
                if len(run.ids) > most:
                    yield

    def _apply(self, step: int, total: list[Rows]) -> Iterator[None]:
        """Makes the table's update number `updates` + 1; yields after each piece. Raises JobFailedError,
        MemoryError."""
        spec, rows, arrays, history = self.spec, self.rows, self.rows.arrays, self.rows.history
        first = None if spec.given else self._made
        used_at = step if spec.is_sync else self.updates  # What a row's age is told by.
        at_once = max(min(spec.piece_elements // max(self.layout.width, 1), self.piece_rows), 1)
        at_once = min(at_once, arrays.at_once or at_once)
        behind: list[tuple[Array, Array]] = []
        hyper: Hyper | None = None
        self.updated = []
        some = batches(total, at_once)
        answers = bool(self.pulled_versions) and len(some) == len(total)
        for run in some:
            ids, gradient, skip = run
            if not rows.is_full:
                (ids, gradient), skip = own_rows(run), None
            if not rows.admits_all:
                admitted = rows.admitted(ids, used_at)
                ids, gradient = ids[admitted], gradient[admitted]
            numbers = ids if rows.is_full else rows.find_or_add(ids, used_at, first)
            out = np.empty_like(gradient) if answers and history is None else None
            try:
                hyper = hyper or spec.hyper.at(step)  # The same for all rows.
                if history is None:
                    arrays.apply(spec.rule, numbers, gradient, step=self.updates + 1, hyper=hyper, out=out, skip=skip)
                else:
                    yield from history.catch_up(arrays, numbers)
                    behind.append((numbers, gradient))
            except RULE_ERRORS as error:
                raise spec.failed(step, error) from error
            if out is not None:
                self.updated.append((ids, out))
            if len(some) > len(total):
                yield
        if history is not None and hyper is not None:
            with spec.rule_runs(step):
                yield from self._update_all(history, behind, used_at, hyper)
        if rows.evicts:
            self.updated = []
            yield from rows.boundary(used_at + 1)

    def _update_all(
        self, history: RowHistory, updated: Sequence[tuple[Array, Array]], used_at: int, hyper: Hyper
    ) -> Iterator[None]:
        """Updates rows that are up to date, and brings some of the others closer."""
        arrays, rule = self.rows.arrays, self.spec.rule
        history.append(hyper)
        for numbers, gradient in updated:
            arrays.apply(rule, numbers, gradient, step=self.updates + 1, hyper=hyper)
            history.saw_all(numbers)
            if len(updated) > 1:
                yield
        # A row of a growing table that is not here has no past, and one that is to be given has no value.
        comes = self.layout.growth is None and not self.spec.given
        create = (lambda rows: self.rows.find_or_add(rows, used_at, self._made)) if comes else None
        yield from history.sweep(arrays, self.rows.stop, create)

    # --- Values that are set: at once, or for a version that is still to come

    @property
    def sets_waiting(self) -> int:
        """For how many versions to come values were set; may be asked on any thread."""
        return len(self._pending_sets)

    def receive_set(self, slot: int, pushed: PushSegment, origin: Hashable) -> list[Range]:
        """Sets or restores a segment of chunks, of a call, the `origin`, each of them once. Returns the one slice where
        pulls or a merge may have waited for it. Raises ProtocolError, and PushRefusedError where nothing was
        changed."""
        rows = Rows(*self.reader.rows(pushed))
        new = self.known_sets.new(pushed.first, pushed.stop, origin)
        if not new:
            return []
        if new != [(pushed.first, pushed.stop)]:
            a_chunk = self.layout.rows_up
            chunks = [np.arange((low - pushed.first) * a_chunk, (high - pushed.first) * a_chunk) for low, high in new]
            numbers = np.concatenate(chunks)
            numbers = numbers[numbers < len(rows.ids)]
            rows = Rows(rows.ids.take(numbers), rows.values.take(numbers, axis=0))
        if pushed.payload_kind == PayloadKind.VALUE:
            is_awaited = self.set(slot, pushed.step, rows)
        else:
            is_awaited = self._restore(slot, pushed, rows)
        self.known_sets.add(pushed.first, pushed.stop, origin)
        return [(0, 1)] if is_awaited else []

    def set(self, slot: int, version: int, rows: Rows) -> bool:
        """Sets rows now, or keeps them for their version, or for the end of the update under way. True if pulls or a
        merge may have waited for it. Raises PushRefusedError for a version that has passed, that is too far ahead, or
        that is one too many."""
        spec, now = self.spec, self.version
        # Before this nothing can be set any more: an update under way has read its rows already.
        passed = int(self.added.min()) if self.begins is not None and spec.is_sync else now
        if not spec.sets_at_once:
            where = f"slot {slot}, key {spec.key!r}"
            waiting = [of for _, of in self._pending_sets if of > now]
            check_version(where, version, now, passed if version else 0, given=spec.given, waiting=waiting)
        is_first = version == 0 and spec.given and bool(spec.slots) and (not spec.is_sync or passed > 0)
        if is_first:  # Given once: a process that starts anew does not undo what was learned.
            self._write(rows, only_new=True)
            return True
        index, waits = 0, [(version if version > now else 0, rows)]
        if spec.sets_at_once:  # Behind what the slot has pushed, which may wait for rows that were never set.
            index, behind = self.indices.get(slot, -1), 0
            if index >= 0 and self.arrived[index, 0] > self.added[index, 0]:
                behind = int(self.arrived[index, 0])
            waits = [(behind, rows)]
            if behind and self.has_uninitialized(rows.ids):
                is_new = self.rows.find(rows.ids) < 0
                apart = (0, is_new), (behind, ~is_new)
                waits = [(of, Rows(rows.ids[some], rows.values[some])) for of, some in apart]
        is_awaited = False
        for of, value in waits:
            key = (index, of) if of else self.begins
            if key is None:
                self._write(value)
                is_awaited = True
            elif len(value.ids):
                sets = self._pending_sets.setdefault(key, [])
                sets.append(value)
                if sum([len(one.ids) for one in sets]) > 2 * len(sets[0].ids):  # Set again they take no more memory.
                    sets[:] = [_last_of(sets)]
        return is_awaited

    def _restore(self, slot: int, pushed: PushSegment, value: Rows) -> bool:
        """Restores rows of a table that nobody has pushed: their values at version `step`, at which the table is from
        then on; or state array number `step` of the rule, from 1, of rows whose values were restored. True if pulls may
        have waited for it. Raises PushRefusedError."""
        state, step, is_value = self.spec.state, pushed.step, pushed.payload_kind == PayloadKind.RESTORED
        where = f"slot {slot}, key {self.spec.key!r}: it cannot be restored"
        self.check_restored(slot, step, 0, 1)
        if is_value:
            if self.version not in {0, step}:
                raise PushRefusedError(f"{where} at version {step}: it is restored at version {self.version}")
            if step != self.version:
                self.begin_at(step, self.spec.updates_at(step))
                if self.rows.history is not None:
                    self.rows.history.begin_at(self.updates)
            self._write(value)
        else:
            if not 1 <= step <= len(state):
                raise PushRefusedError(f"{where}: the rule has {len(state)} state arrays, not {step}")
            numbers = self.rows.find(value.ids)
            if (numbers < 0).any():
                raise PushRefusedError(f"{where}: there is state of rows whose values were not restored")
            self.rows.arrays.write(state[step - 1], numbers, value.values)
        return is_value

    def _apply_sets(self, begins: tuple[int, int]) -> Iterator[None]:
        """Puts what was set for the version that begins, or during its update; stops after each piece."""
        sets = self._pending_sets.pop(begins, [])
        for rows in batches([_last_of(sets)], self.piece_rows) if sets else ():
            self._write(rows)
            yield
        if sets := self._pending_sets.pop(begins, []):  # It came meanwhile, and holds now: so the update ends.
            self._write(_last_of(sets))

    def put_sets_of(self, slot: int) -> None:
        """What the slot has pushed is forgotten: values that have waited behind it, in async and stale mode, hold now,
        or with the update under way."""
        index, begins = self.indices.get(slot, -1), self.begins
        waiting = [key for key in self._pending_sets if key[0] == index and key != begins and self.spec.sets_at_once]
        for rows in [one for key in sorted(waiting) for one in self._pending_sets.pop(key)]:
            if begins is None:
                self._write(rows)
            else:
                self._pending_sets.setdefault(begins, []).append(rows)

    def _write(self, value: Rows, *, only_new: bool = False) -> None:
        """Sets rows; with `only_new` only uninitialized ones."""
        self.updated = []
        arrays, history, given = self.rows.arrays, self.rows.history, self.spec.given
        ids, values, _ = value
        known = self.rows.find(ids) >= 0
        if only_new:
            ids, values, known = ids[~known], values[~known], known[~known]
        # With standard semantics the state has seen the updates that passed the rows by, but for those never set.
        used_at = self.version if self.spec.is_sync else self.updates
        numbers = self.rows.find_or_add(ids, used_at, None if given or history is None else self._made)
        if history is not None and not only_new:
            if self.spec.state:
                for _ in history.catch_up(arrays, numbers[known] if given else numbers):
                    pass
            history.saw_all(numbers)
        arrays.write(None, numbers, values)

    # --- Rows as they are

    def reading(self, indices: Array, name: str | None) -> Generator[None, None, Array]:
        """Rows (n, width) as they are now, or their state of that name; yields after each piece. Raises
        JobFailedError."""
        if self.rows.is_full:
            return self.rows.arrays.read(name, indices)
        history = self.rows.history
        if history is not None:  # Updates have passed rows by: those that are here are brought up to date for good.
            numbers = self.rows.find(indices)
            with self.spec.rule_runs(self.version):
                yield from history.catch_up(self.rows.arrays, numbers[numbers >= 0])
        found, absent = self.rows.read(name, indices)
        if absent is None:
            return found
        if history is None and name is not None:
            found[absent] = self.spec.rule.state[name]
        elif not self.spec.given:
            first = self._made(indices[absent])
            if history is not None:
                with self.spec.rule_runs(self.version):
                    state = yield from history.age(first)
                first = first if name is None else state[name]
            found[absent] = first
        return found

    # --- Pulls, and what answers them

    def ready(self, wait: PullWait, first: int = 0, stop: int = 1) -> list[Alike]:
        """The one slice with the version at which the pull can be answered; nothing where it cannot."""
        if self.spec.number not in wait.unanswered or not self.can_answer(wait, first, stop)[0]:
            return []
        seen = self.seen(wait)
        return [(0, 1, max(int((self.versions if seen is None else seen)[0]), wait.version))]

    def can_answer(self, wait: PullWait, first: int = 0, stop: int = 1) -> Array:
        """Whether the table can answer (1) bool: not while it changes, and not with uninitialized rows."""
        if self.begins is not None or (self.spec.given and self.has_uninitialized(wait.rows.ids)):
            return np.zeros(1, np.bool_)
        return super().can_answer(wait, first, stop)

    def uninitialized(self, first: int, stop: int, wait: PullWait | None = None) -> Array:
        pulls_uninitialized = self.spec.given and wait is not None and self.has_uninitialized(wait.rows.ids)
        return np.array([pulls_uninitialized or any(self._lacks_rows(gradient) for _, _, gradient in self._next())])

    def answers(self, wait: PullWait, version: int) -> Iterator[AnswerSegment | None]:
        """The segments that answer a pull that is `ready`, at a version; None between two pieces."""
        spec, layout = self.spec, self.layout
        indices: Array = wait.rows.ids
        chunk_rows = layout.rows_down
        at_once = max(self.piece_rows // chunk_rows, 1) * chunk_rows
        priority = spec.priority - wait.priority * CALL_PRIORITY
        for array, name in enumerate(spec.state if wait.state else (None,)):
            for low in range(0, max(len(indices), 1), at_once):
                if array or low:
                    yield None
                some = indices if len(indices) <= at_once else indices[low : low + at_once]
                rows = None
                for ids, values in self.updated if name is None else ():
                    if ids is some or (len(ids) == len(some) and np.array_equal(ids, some)):
                        rows = values
                if rows is None:
                    rows = yield from self.reading(some, name)
                bounds = np.array([*range(0, max(rows.nbytes, 1), chunk_rows * layout.row_bytes), rows.nbytes])
                entry, source = AnswerEntry(wait.request, array, spec.number, version), BufferSource(bytes_of(rows))
                yield OutSegment(entry, low // chunk_rows, bounds, source, priority=priority, owner=None)

    def fits_one_piece(self, wait: PullWait) -> bool:
        """Whether the answer fits one piece: few rows, which have missed few updates."""
        history, ids = self.rows.history, wait.rows.ids
        if len(ids) * (len(self.spec.state) if wait.state else 1) > self.piece_rows:
            return False
        return history is None or history.work_of(self.rows.find(ids), self.layout.width) <= WORK_ELEMENTS


def _last_of(sets: Sequence[Rows]) -> Rows:
    """The last value of each row that was set."""
    return last_rows(np.concatenate([one.ids for one in sets]), np.concatenate([one.values for one in sets]))
