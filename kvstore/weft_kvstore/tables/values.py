"""What a shard knows of a table, and the table's values: first made, read, set and updated. Pure."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft_graph.program import Update
from weft_kernels.rules.record import Rule
from weft_kernels.rules.replay import WORK_ELEMENTS
from weft_kvstore.arrays import Array
from weft_kvstore.bucket.gate import StepGate
from weft_kvstore.bucket.update import RULE_ERRORS, RuleFailedError
from weft_kvstore.bucket.waiting import PIECE_ELEMENTS
from weft_kvstore.description.records import Merge, Mode, Sparse
from weft_kvstore.hyper import HyperAgreement, KeyHyper
from weft_kvstore.rows.arrays import RowHistory
from weft_kvstore.rows.memory import TablePlace
from weft_kvstore.rows.rows import Rows
from weft_kvstore.rows.storage import Draw, FixedRows, GrowingRows, HeldRows
from weft_kvstore.sharding import RowCut


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


@dataclass(frozen=True, slots=True)
class Complete:
    """An update that is due: of job step `step`, the sum of `contributors` gradients; None where there was none. `slot`
    is whose gradient it is, where each is applied by itself."""

    step: int
    contributors: int
    total: Rows | None
    slot: int | None = None


# --- First values of a table's rows, of which those that were shown last are not made again ---------------------------


MakeRows = Callable[[Array], Array]
"""make(rows): the first values (n, width) of the table's rows (n) int64."""

KEPT_BYTES: Final = 16 << 20
"""What is kept of one table, at most: a pull's rows are pushed soon after it, or pulled by another slot."""

KEPT_PARTS: Final = 64
"""Pulls of which rows are kept, at most: each is looked into for what is asked."""


class FirstMade:
    """Remembers the rows that pulls were shown. Invariant: `_bytes` is the sum over `_kept`, the newest last."""

    __slots__ = ("_bytes", "_kept", "_make")

    def __init__(self, make: MakeRows) -> None:
        self._make = make
        self._kept: deque[Rows] = deque()
        self._bytes = 0

    def shown(self, ids: Array) -> Array:
        """First values (n, width) of rows (n) int64, distinct and ascending, that a push may soon bring into being."""
        made, found = self._made(ids)
        if made is not None and made.nbytes <= KEPT_BYTES:
            self._kept.append(made)
            self._bytes += made.nbytes
            while self._bytes > KEPT_BYTES or len(self._kept) > KEPT_PARTS:
                self._bytes -= self._kept.popleft().nbytes
        return found

    def taken(self, ids: Array) -> Array:
        """The same, of rows that come into being now: nobody will ask for their first values again. Pulls of which all
        rows have are forgotten, so that later ones are not looked for among them."""
        return self._made(ids, forget=True)[1]

    def _made(self, ids: Array, *, forget: bool = False) -> tuple[Rows | None, Array]:
        """What had to be made now, if anything, and the values of all ids."""
        left = np.arange(len(ids))
        known: list[tuple[Array, Array]] = []
        for rows in reversed(list(self._kept)):
            places = np.minimum(np.searchsorted(rows.ids, ids[left]), len(rows.ids) - 1)
            here = rows.ids[places] == ids[left]
            if here.any():
                known.append((left[here], rows.values[places[here]]))
                if forget and len(known[-1][0]) == len(rows.ids):
                    self._kept.remove(rows)
                    self._bytes -= rows.nbytes
                left = left[~here]
                if not left.size:
                    break
        made = Rows(ids[left], self._make(ids[left])) if left.size or not known else None
        if not known and made is not None:
            return (made if left.size else None), made.values
        found = np.empty((len(ids), known[0][1].shape[1]), known[0][1].dtype)
        for spots, values in known:
            found[spots] = values
        if made is not None:
            found[left] = made.values
        return made, found


# --- The rows of a table on a shard by what they are worth: what is here, or what would begin; read, set, updated -----
# A row that was never touched takes no memory: its first value is computed when it is read. The rule runs on the
# touched rows alone; with standard semantics the others get what they have missed when they are next met.


class TableValues:
    """`rows` says where rows are and what they hold; `dropped` counts rows of gradients that were dropped, for their
    ids were not admitted. A `moment` is what a row's age is told by."""

    __slots__ = ("_cut", "_first", "_history", "_shard", "_spec", "a_piece", "dropped", "rows")

    def __init__(
        self,
        spec: KeyRules,
        cut: RowCut,
        shard: int,
        first: MakeRows,
        *,
        a_piece: int,
        sparse: Sparse = Sparse.LAZY,
        draw: Draw | None = None,
        place: TablePlace | None = None,
        salt: int | None = None,
    ) -> None:
        """`a_piece`: rows that are read at once; the others are of `TableState`, and so is what is raised."""
        self._spec = spec
        self._cut = cut
        self._shard = shard
        self.a_piece = a_piece
        self.dropped = 0
        self._first = FirstMade(first) if cut.growth is None else first
        start = {name: spec.rule.state[name] for name in spec.state}
        count = cut.rows_on(shard) if cut.growth is None else None
        self._history = RowHistory(spec.rule, cut.dtype, count) if sparse is Sparse.STANDARD and spec.slots else None
        self.rows: HeldRows
        if cut.growth is None:
            self.rows = FixedRows(cut.rows_on(shard), cut.width, cut.dtype, start, place, history=self._history)
        else:
            salt = secrets.randbits(64) if salt is None else salt
            self.rows = GrowingRows(
                cut.width, cut.dtype, start, cut.growth, salt=salt, draw=draw, place=place, history=self._history
            )

    def is_long(self, places: Array) -> bool:
        """Whether reading these rows takes more than a piece of work, for they have missed too many updates."""
        history = self._history
        return history is not None and history.work_of(self.rows.find(places), self._cut.width) > WORK_ELEMENTS

    def reading(self, name: str | None, places: Array, *, of: int, version: int) -> Generator[None, None, Array]:
        """The value of some rows of a pull of so many, or their state of that name (n, width); stops after each piece.
        A push of what was pulled may follow. Raises RuleFailedError."""
        keep = of * self._cut.row_bytes <= KEPT_BYTES
        if self._history is not None:
            with self._spec.rule_runs(version):
                return (yield from self._replayed(self._history, name, places, keep=keep))
        if name is not None:
            return self.rows.state(name, places, self._spec.rule.state[name])
        found, lacks = self.rows.values(places)
        if not self._spec.given and lacks.any():
            found[lacks] = self._made(places[lacks], keep=keep)
        return found

    def _replayed(
        self, history: RowHistory, name: str | None, places: Array, *, keep: bool
    ) -> Generator[None, None, Array]:
        """The same of rows that updates passed by: those that are here are brought up to date for good."""
        arrays, numbers = self.rows.arrays, self.rows.find(places)
        lacks = numbers < 0
        yield from history.catching_up(arrays, numbers[~lacks])
        found = np.empty((len(places), self._cut.width), self._cut.dtype)
        if not lacks.all():
            there = numbers[~lacks]
            found[~lacks] = arrays.values(there) if name is None else arrays.state(name, there)
        if lacks.any() and not self._spec.given:
            first = self._made(places[lacks], keep=keep).copy()  # What was made is kept as it was.
            state = yield from history.aging(first)
            found[lacks] = first if name is None else state[name]
        return found

    def fill(self, value: Rows, moment: int) -> None:
        """Sets what of these rows is not here."""
        new = self.rows.find(value.ids) < 0
        numbers = self.rows.bring(value.ids[new], moment, None)
        self.rows.arrays.put(numbers, value.values[new])

    def put(self, value: Rows, moment: int) -> None:
        """Sets rows."""
        arrays, history = self.rows.arrays, self._history
        if history is None:
            arrays.put(self.rows.bring(value.ids, moment, None), value.values)
            return
        # Their state has seen the updates that passed them by: all but that of rows that were never set before.
        given = self._spec.given
        known = self.rows.find(value.ids) >= 0 if given else np.ones(len(value.ids), np.bool_)
        numbers = self.rows.bring(value.ids, moment, None if given else self._made)
        if self._spec.state:
            for _ in history.catching_up(arrays, numbers[known]):
                pass
        arrays.put(numbers, value.values)
        history.saw_all(numbers)

    def apply(self, complete: Complete, moment: int, update: int) -> Iterator[None]:
        """Makes the table's update of that number, the first is 1; stops after each piece. Raises RuleFailedError,
        MemoryError."""
        if complete.total is None:
            return
        rows, step = complete.total, complete.step
        piece = min(max(self._spec.a_piece // max(self._cut.width, 1), 1), self.a_piece)
        behind: list[tuple[Array, Array]] = []
        for ids, given in rows.pieces(piece):
            numbers, gradient = self._touched(ids, given, moment)
            if self._history is None:
                self._update(numbers, gradient, step, update)
            else:
                with self._spec.rule_runs(step):
                    yield from self._history.catching_up(self.rows.arrays, numbers)
                behind.append((numbers, gradient))
            if len(rows) > piece:
                yield
        if self._history is not None:
            yield from self._updating(self._history, behind, step, update, moment)
        yield from self.rows.boundary(moment + 1)

    def _touched(self, ids: Array, gradient: Array, moment: int) -> tuple[Array, Array]:
        """The numbers of rows that a gradient is for, which come into being, and their part of it."""
        admitted = self.rows.admitted(ids, moment)
        if admitted is not None and not admitted.all():
            self.dropped += len(ids) - int(np.count_nonzero(admitted))
            ids, gradient = ids[admitted], gradient[admitted]
        return self.rows.bring(ids, moment, None if self._spec.given else self._made), gradient

    def _update(self, numbers: Array, gradient: Array, step: int, update: int) -> None:
        with self._spec.rule_runs(step):
            hyper = self._spec.hyper.at(step)
            self.rows.apply(self._spec.rule, numbers, gradient, step=update, hyper=hyper)

    def _updating(
        self, history: RowHistory, parts: Sequence[tuple[Array, Array]], step: int, update: int, moment: int
    ) -> Iterator[None]:
        """Updates rows that have seen all that was before, and brings some of the others closer."""
        with self._spec.rule_runs(step):
            history.append(self._spec.hyper.at(step))
        for numbers, gradient in parts:
            self._update(numbers, gradient, step, update)
            history.saw_all(numbers)
            if len(parts) > 1:
                yield
        # A row of a growing table that is not here has no past, and one that is to be given has no value.
        comes = self._cut.growth is None and not self._spec.given
        bring = (lambda rows: self.rows.bring(rows, moment, self._made)) if comes else None
        with self._spec.rule_runs(step):
            yield from history.sweeping(self.rows.arrays, self.rows.stop, bring)

    def _made(self, places: Array, *, keep: bool = False) -> Array:
        """First values of rows that are not here (n, width)."""
        ids = self._cut.ids_at(self._shard, places)
        if not isinstance(self._first, FirstMade):
            return self._first(ids)
        return self._first.shown(ids) if keep else self._first.taken(ids)
