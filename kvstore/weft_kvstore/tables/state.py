"""A table on one shard: what is pushed to it, set and pulled of it, step by step. Pure."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from typing import Final

import numpy as np

from weft_kernels.rules.replay import WORK_ELEMENTS
from weft_kvstore.arrays import Array, bytes_of, exact_sum
from weft_kvstore.bucket.bucket import MOST_RESTORED
from weft_kvstore.bucket.pulls import AnswerEntry, AnswerRun, PullWait, WaitingPulls
from weft_kvstore.bucket.sets import KnownSets, check_version
from weft_kvstore.bucket.update import PIECE_ELEMENTS, RULE_ERRORS
from weft_kvstore.description.records import Sparse
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.rows.arrays import RowHistory
from weft_kvstore.rows.memory import TablePlace
from weft_kvstore.rows.rows import Rows, batches, last_rows, own_rows
from weft_kvstore.rows.storage import Draw, TableRows
from weft_kvstore.sharding import RowLayout
from weft_kvstore.tables.steps import TableSpec, TableSteps
from weft_kvstore.wire.codec import RowReader, Run
from weft_kvstore.wire.messages import Reading
from weft_kvstore.wire.outbox import CALL_PRIORITY, UNPINNED, BufferSource, OutRun

MakeRows = Callable[[Array], Array]
"""make(rows): the first values (n, width) of the table's rows (n) int64."""

_NEVER: Final = -1


class TableState:
    """Rows are named by their index on the shard; of a growing table that is the id. A row takes memory once it is
    pushed or set: before, its first value is computed when it is read. The rule runs on the pushed rows alone; with
    standard semantics the others get what they have missed when they are next pushed or read.

    `updates` counts the steps that changed it. An update is made in pieces, and what is half made is shown to nobody:
    while `_changing` no pull can be answered. `merge_is_due` while a merge waits in the work queue. `_ahead` has, by
    version to come, the values that were set for it, and `_late` those that were set during an update; `_known_sets`
    the chunks of the last calls that set something; `_measured` the last step whose gradient the gate was given.
    """

    __slots__ = (
        "_ahead",
        "_changing",
        "_first",
        "_known_sets",
        "_late",
        "_measured",
        "_updated",
        "is_queued",
        "layout",
        "merge_is_due",
        "piece_rows",
        "pulls",
        "reached",
        "reader",
        "rows",
        "shard",
        "spec",
        "steps",
        "todo",
        "updates",
    )

    def __init__(
        self,
        spec: TableSpec,
        layout: RowLayout,
        shard: int,
        first: MakeRows,
        *,
        sparse: Sparse = Sparse.LAZY,
        draw: Draw | None = None,
        place: TablePlace | None = None,
        salt: int | None = None,
    ) -> None:
        """`draw` makes the numbers by which a growing table admits; `salt` says where ids lie in its index: it changes
        no value, and nobody else should know it. Raises MemoryError where not even the addresses are to be had, and
        OSError where no file can be made at the place."""
        self.spec = spec
        self.layout = layout
        self.shard = shard
        self.reader = RowReader(layout, shard, spec.key)
        self.steps = TableSteps(spec.slots, spec.merge, is_sync=spec.is_sync, chunk_rows=layout.rows_up, key=spec.key)
        self.pulls = WaitingPulls(spec, self.steps.counts)
        self.piece_rows = max(PIECE_ELEMENTS // max(layout.width, 1), 1)
        self.updates = 0
        self.reached: Callable[[int], None] | None = None
        """Called with each version that the table reaches; None: nobody listens."""
        self.merge_is_due = self.is_queued = False
        self.todo: deque[Iterator[None]] = deque()
        """Tasks that wait, in their order. `is_queued`: the merger runs them, one piece at a time."""
        self._changing = False
        self._updated: list[tuple[Array, Array]] = []
        """Indices and values of rows as the last update left them, while nothing else has written rows since: who has
        pushed rows most often pulls these."""
        self._first = first
        self._measured = _NEVER
        self._ahead: dict[int, list[Rows]] = {}
        self._late: list[Rows] = []
        self._known_sets = KnownSets()
        count = layout.rows_on(shard) if layout.growth is None else None
        self.rows = TableRows(
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
        return self.steps.version

    def passed_version(self, version: int) -> bool:
        """Whether the values of a version are gone. A key to which no slot contributes is at every version."""
        return bool(self.spec.slots) and self._passed > version

    def is_quiet_at(self, version: int) -> bool:
        """Whether it is at a version, with no update under way."""
        return not self._changing and (self.version == version or not self.spec.slots)

    def begin_at(self, version: int, updates: int) -> None:
        """A table that nobody has pushed begins at a version, after so many updates."""
        self.updates = updates
        if self.spec.slots:
            self.steps.begin_at(version)

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: what the old one pushed and is not merged is forgotten."""
        self.steps.replace(slot, keep_due=self._changing)

    # --- Gradients: taken in, merged, and applied once every slot's is in

    def accept(self, slot: int, step: int, gradient: Rows | None) -> bool:
        """Takes in a slot's gradient, which is written later, or None for nothing. True if `merging` may now have
        something to do. What was in before changes nothing: exactly once holds. Raises PushRefusedError where it
        contradicts what is there."""
        steps = self.steps
        given = None if gradient is None else [gradient]
        return steps.check(slot, step, pushes=given is not None) and steps.accept(slot, step, given)

    def push(self, slot: int, step: int, ids: Array, values: Array, run: Run) -> bool:
        """Takes in a run of chunks of a push, as `accept` does: the slot is in when all chunks are. Raises
        PushRefusedError where it contradicts what is there, or itself."""
        steps = self.steps
        if not steps.check(slot, step, pushes=True):
            return False
        if run.count == run.chunks and not steps.open:
            return steps.accept(slot, step, [Rows(ids, values)])
        whole = steps.join(slot, step, (ids, values), run)
        return whole is not None and steps.accept(slot, step, whole)

    def merging(self) -> Generator[None, None, bool]:
        """Adds what has come, and makes the next update if it is due; stops after each piece. True if it made one.

        Raises RuleFailedError, and MemoryError where sums find none: it cannot go on then.
        """
        used = 0
        for elements in self.steps.merging():
            used += elements
            if used >= PIECE_ELEMENTS:
                used = 0
                yield
        due = self.steps.due()
        if due is None or (self.spec.given and self._lacks_for(due[1])):
            return False
        step, total = due
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
        self._changing = True
        if total is not None:
            yield from self._apply(step, total)
            self.updates += 1
        self.steps.advance()
        yield from self._put_ahead() if self._ahead or self._late else ()
        self._changing = False
        if self.reached is not None:
            self.reached(self.version)
        return True

    def _lacks_for(self, total: list[Rows] | None) -> bool:
        """Whether a step with this total has to wait, since some of its rows were never set."""
        return total is not None and not all(self.rows.has_all(part.ids) for part in total)

    def _measure(self, step: int, total: list[Rows] | None) -> Iterator[None]:
        """Tells the gate the exact sum of the squares of each row; None where that is not finite."""
        gate = self.spec.gate
        assert gate is not None
        squares: int | None = 0
        if total is not None:
            yield from self._multiply(total, 1.0 / gate.loss_scale.scale)
            some = batches(total, self.piece_rows)
            for part in some:
                exact = exact_sum(np.square(part.values, dtype=np.float64).sum(axis=1))
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
        for part in total:
            for low in range(0, len(part.ids), most):
                values = part.values[low : low + most]  # A view; `batches` may copy.
                np.multiply(values, values.dtype.type(factor), out=values)
                if len(part.ids) > most:
                    yield

    def _apply(self, step: int, total: list[Rows]) -> Iterator[None]:
        """Makes the table's update, number `updates` + 1; stops after each piece. Raises RuleFailedError,
        MemoryError."""
        rows, history, first = self.rows, self.rows.history, None if self.spec.given else self._made
        moment = step if self.spec.is_sync else self.updates
        at_once = max(min(self.spec.piece_elements // max(self.layout.width, 1), self.piece_rows), 1)
        at_once = min(at_once, rows.arrays.at_once or at_once)
        behind: list[tuple[Array, Array]] = []
        self._updated = []
        some = batches(total, at_once)
        answers = bool(self.pulls.versions) and len(some) == len(total)
        for part in some:
            ids, gradient, still = part
            if not rows.is_full:
                (ids, gradient), still = own_rows(part), None
            if not rows.admits_all:
                admitted = rows.admitted(ids, moment)
                ids, gradient = ids[admitted], gradient[admitted]
            numbers = ids if rows.is_full else rows.find_or_add(ids, moment, first)
            if history is None:
                out = np.empty_like(gradient) if answers else None
                self._update(numbers, gradient, step, out, still)
                if out is not None:
                    self._updated.append((ids, out))
            else:
                with self.spec.rule_runs(step):
                    yield from history.catch_up(rows.arrays, numbers)
                behind.append((numbers, gradient))
            if len(some) > len(total):
                yield
        if history is not None:
            yield from self._update_all(history, behind, step)
        if rows.evicts:
            self._updated = []
            yield from rows.boundary(moment + 1)

    def _update_all(self, history: RowHistory, parts: Sequence[tuple[Array, Array]], step: int) -> Iterator[None]:
        """Updates rows that have seen all that was before, and brings some of the others closer."""
        with self.spec.rule_runs(step):
            history.append(self.spec.hyper.at(step))
        for numbers, gradient in parts:
            self._update(numbers, gradient, step)
            history.saw_all(numbers)
            if len(parts) > 1:
                yield
        # A row of a growing table that is not here has no past, and one that is to be given has no value.
        comes = self.layout.growth is None and not self.spec.given
        create = (lambda rows: self.rows.find_or_add(rows, self._moment(step), self._made)) if comes else None
        with self.spec.rule_runs(step):
            yield from history.sweep(self.rows.arrays, self.rows.stop, create)

    def _update(
        self, numbers: Array, gradient: Array, step: int, out: Array | None = None, still: Array | None = None
    ) -> None:
        spec = self.spec
        try:
            hyper = spec.hyper.at(step)
            self.rows.arrays.apply(
                spec.rule, numbers, gradient, step=self.updates + 1, hyper=hyper, out=out, still=still
            )
        except RULE_ERRORS as error:
            raise spec.failed(step, error) from error

    def _made(self, indices: Array) -> Array:
        """First values of rows that are not here (n, width)."""
        return self._first(self.layout.ids_at(self.shard, indices))

    def _moment(self, step: int) -> int:
        """What a row's age is told by: the step, or in async, where each slot has its own, the updates so far."""
        return step if self.spec.is_sync else self.updates

    # --- Values that are set: at once, or for a version that is still to come

    @property
    def sets_waiting(self) -> int:
        """For how many versions to come values were set; may be asked on any thread."""
        return len(self._ahead)

    @property
    def _passed(self) -> int:
        """The version before which nothing can be set any more: an update under way has read its rows already."""
        return self.version + 1 if self._changing and self.spec.is_sync else self.version

    def check_set(self, slot: int, version: int, origin: Hashable, first: int = 0, stop: int = 1) -> None:
        """Raises PushRefusedError for a version that has passed, that is too far ahead, or that is one too many."""
        if self._known_sets.new(first, stop, origin) and not self.spec.holds_at_once:
            where, passed = f"slot {slot}, key {self.spec.key!r}", self._passed if version else 0
            check_version(where, version, self.version, passed, given=self.spec.given, waiting=self._ahead)

    def set(self, version: int, rows: Rows, origin: Hashable, first: int = 0, stop: int = 1) -> bool:
        """Takes in what `check_set` lets pass: sets it now, or keeps it for its version, or for the end of the update
        under way. Of a call, the `origin`, these are chunks `first` to before `stop`, each of which is taken in once.
        True if pulls or a merge may have waited for it."""
        value = self._new_rows(rows, origin, first, stop)
        if value is None:
            return False
        self._known_sets.add(first, stop, origin)
        spec = self.spec
        is_first = version == 0 and spec.given and bool(spec.slots) and (not spec.is_sync or self._passed > 0)
        if is_first:  # Given once: a process that starts anew does not undo what was learned.
            self._write(value, only_new=True)
            return True
        is_ahead = version > self.version and not spec.holds_at_once
        if not is_ahead and not self._changing:
            self._write(value)
            return True
        parts = self._ahead.setdefault(version, []) if is_ahead else self._late
        parts.append(value)
        if sum([len(one.ids) for one in parts]) > 2 * len(parts[0].ids):  # What is set again takes no more memory.
            parts[:] = [_last_of(parts)]
        return False

    def restore(  # noqa: PLR0917  # as `set`
        self, slot: int, step: int, rows: Rows, origin: Hashable, first: int = 0, stop: int = 1, *, is_value: bool
    ) -> bool:
        """Of a table that nobody has pushed, each chunk once: rows of its value at version `step`, which the table has
        from then on; or of the rule's state array number `step`, from 1, of rows that were restored. True if pulls may
        have waited for it. Raises PushRefusedError."""
        state = self.spec.state
        where = f"slot {slot}, key {self.spec.key!r}: it cannot be restored"
        value = self._new_rows(rows, origin, first, stop)
        if value is None:
            return False
        if self.spec.gate is not None:
            raise PushRefusedError(f"{where}: a store with commit cannot be restored: its steps begin at 0")
        if not self.steps.counts.untouched(0, 1) or self.steps.holds or self.steps.open:
            raise PushRefusedError(f"{where}: a step of it has begun; restore before anybody pushes")
        if is_value:
            if step >= MOST_RESTORED:
                raise PushRefusedError(f"{where}: a store is restored at a step below 2^60")
            if self.version not in {0, step}:
                raise PushRefusedError(f"{where} at version {step}: it is restored at version {self.version}")
            if step != self.version:
                self.begin_at(step, step)
                if self.rows.history is not None:
                    self.rows.history.begin_at(step)
            self._write(value)
        else:
            if not 1 <= step <= len(state):
                raise PushRefusedError(f"{where}: the rule has {len(state)} state arrays, not {step}")
            numbers = self.rows.find(value.ids)
            if (numbers < 0).any():
                raise PushRefusedError(f"{where}: there is state of rows whose values were not restored")
            self.rows.arrays.write(state[step - 1], numbers, value.values)
        self._known_sets.add(first, stop, origin)
        return is_value

    def _new_rows(self, rows: Rows, origin: Hashable, first: int, stop: int) -> Rows | None:
        """The rows of those chunks of a call that it has not set before; None where there are none."""
        new = self._known_sets.new(first, stop, origin)
        if new == [(first, stop)] or not new:
            return rows if new else None
        a_chunk = self.layout.rows_up
        rows_of = np.concatenate([np.arange((low - first) * a_chunk, (high - first) * a_chunk) for low, high in new])
        rows_of = rows_of[rows_of < len(rows.ids)]
        return Rows(rows.ids.take(rows_of), rows.values.take(rows_of, axis=0))

    def _put_ahead(self) -> Iterator[None]:
        """Puts what was set for the version that begins, then what came during the update; stops after each piece."""
        ahead, late = self._ahead.pop(self.version, []), self._late
        self._late = []
        for parts in (ahead, late):
            for part in batches([_last_of(parts)], self.piece_rows) if parts else ():
                self._write(part)
                yield
        if self._late:  # It came meanwhile, and holds now: so the update ends.
            self._write(_last_of(self._late))
            self._late = []

    def _write(self, value: Rows, *, only_new: bool = False) -> None:
        """Sets rows; `only_new`: those that were never set."""
        self._updated = []
        arrays, history, given = self.rows.arrays, self.rows.history, self.spec.given
        ids, values, _ = value
        known = self.rows.find(ids) >= 0
        if only_new:
            ids, values, known = ids[~known], values[~known], known[~known]
        # With standard semantics the state has seen the updates that passed the rows by, but for those never set.
        numbers = self.rows.find_or_add(
            ids, self._moment(self.version), None if given or history is None else self._made
        )
        if history is not None and not only_new:
            if self.spec.state:
                for _ in history.catch_up(arrays, numbers[known] if given else numbers):
                    pass
            history.saw_all(numbers)
        arrays.write(None, numbers, values)

    # --- Pulls: answered, or kept until they can be

    def can_answer(self, wait: PullWait) -> bool:
        if self._changing or (self.spec.given and self._lacks(wait)):
            return False
        if not (self.spec.is_sync and self.spec.slots):
            return bool(self.pulls.can(wait)[0])
        version = self.steps.version
        return version == wait.version if wait.reading is Reading.EXACT else version >= wait.version

    def passed(self, wait: PullWait) -> str | None:
        """Why a pull of an exact version can never be answered, once it is beyond it."""
        if wait.reading is not Reading.EXACT or self.version <= wait.version or not self.spec.slots:
            return None
        return f"key {self.spec.key!r} is at version {self.version}: it has passed"

    def answerable(self) -> list[PullWait]:
        """The pulls that can be answered now, by version and in the order in which they came; it keeps the others."""
        ready: list[PullWait] = []
        for one in self.pulls.waiting():
            if self.can_answer(one):
                ready.append(one)
                self.pulls.forget(one)
        return ready

    def waits_for(self, wait: PullWait) -> tuple[str, list[int]]:
        """What an open pull waits for, in words, and the slots that are missing."""
        key, due = f"key {self.spec.key!r}", self.steps.due()
        seen = f"{key} has seen {self.version} steps"
        unset = f"{key} was never set: a worker has to call init"
        if self.pulls.can(wait)[0]:
            return (unset if self._lacks(wait) else f"{key} is being answered"), []
        if due is not None:
            if self.spec.given and self._lacks_for(due[1]):
                return unset, []
            if self.spec.gate is not None and self._measured == due[0]:
                text, missing = self.spec.gate.missing(due[0])
                return f"{seen}; {text}", missing
        text, missing = self.pulls.missing(wait)
        return f"{key} {text}", missing

    def answers(self, wait: PullWait) -> Iterator[AnswerRun | None]:
        """What answers a pull that can be answered; None between two pieces."""
        layout, spec = self.layout, self.spec
        indices: Array = wait.rows.ids
        chunk_rows = layout.rows_down
        at_once = max(self.piece_rows // chunk_rows, 1) * chunk_rows
        seen = None if spec.is_sync else self.pulls.seen(wait)
        version = max(self.steps.version if seen is None else int(seen[0]), wait.version)
        priority = spec.priority - wait.priority * CALL_PRIORITY
        for array, name in enumerate(spec.state if wait.state else (None,)):
            for low in range(0, max(len(indices), 1), at_once):
                if array or low:
                    yield None
                some = indices if len(indices) <= at_once else indices[low : low + at_once]
                rows = None
                for ids, values in self._updated if name is None else ():
                    if ids is some or (len(ids) == len(some) and np.array_equal(ids, some)):
                        rows = values
                if rows is None:
                    rows = yield from self.reading(some, name)
                bounds = np.array([*range(0, max(rows.nbytes, 1), chunk_rows * layout.row_bytes), rows.nbytes])
                entry, source = AnswerEntry(wait.request, array, spec.number, version), BufferSource(bytes_of(rows))
                yield OutRun(entry, low // chunk_rows, bounds, source, priority=priority, owner=UNPINNED)

    def fits_one_piece(self, wait: PullWait) -> bool:
        """Whether the answer is small enough to be given in one go: few rows, which have missed few updates."""
        history = self.rows.history
        ids: Array = wait.rows.ids
        if len(ids) * (len(self.spec.state) if wait.state else 1) > self.piece_rows:
            return False
        return history is None or history.work_of(self.rows.find(ids), self.layout.width) <= WORK_ELEMENTS

    def lacks_rows(self, indices: Array) -> bool:
        """Whether some of these rows are to be set, and never were."""
        return self.spec.given and not self.rows.has_all(indices)

    def _lacks(self, wait: PullWait) -> bool:
        return wait.rows is not None and self.lacks_rows(wait.rows.ids)

    def reading(self, indices: Array, name: str | None) -> Generator[None, None, Array]:
        """Rows (n, width) as they are now, or their state of that name; stops after each piece. Raises
        RuleFailedError."""
        if self.rows.is_full:
            return self.rows.arrays.read(name, indices)
        history = self.rows.history
        if history is not None:  # Updates have passed rows by: those that are here are brought up to date for good.
            numbers = self.rows.find(indices)
            with self.spec.rule_runs(self.version):
                yield from history.catch_up(self.rows.arrays, numbers[numbers >= 0])
        found, lacks = self.rows.read(name, indices)
        if lacks is None:
            return found
        if history is None and name is not None:
            found[lacks] = self.spec.rule.state[name]
        elif not self.spec.given:
            first = self._made(indices[lacks])
            if history is not None:
                with self.spec.rule_runs(self.version):
                    state = yield from history.age(first)
                first = first if name is None else state[name]
            found[lacks] = first
        return found


def _last_of(parts: Sequence[Rows]) -> Rows:
    """Of each row that was set the last value."""
    return last_rows(np.concatenate([one.ids for one in parts]), np.concatenate([one.values for one in parts]))
