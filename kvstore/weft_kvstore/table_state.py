"""A table's rows on one shard: they come into being when they are first pushed or set. Pure.

A row that was never touched takes no memory: a pull of it computes its first value. Rows are named by their place on
the shard, ascending. The rule runs on the touched rows alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise

import numpy as np

from weft_kernels.rules.rows import apply_to_rows
from weft_kvstore.answer import Answer
from weft_kvstore.assembly import Assemblies
from weft_kvstore.buffers import bytes_of
from weft_kvstore.first_made import KEPT_BYTES, FirstMade, MakeRows
from weft_kvstore.out_run import OneBuffer
from weft_kvstore.pull_wait import PullWait
from weft_kvstore.row_cut import RowCut, chunks_of
from weft_kvstore.rows import Rows, merged
from weft_kvstore.sets_ahead import RowsAhead, SetsAhead
from weft_kvstore.steps import Complete, PushRefusedError
from weft_kvstore.store import Array
from weft_kvstore.unit_state import KeyRules, UnitState
from weft_kvstore.work import PIECE_ELEMENTS
from weft_kvstore.zeros import zeros_on_demand


class TableState(UnitState[Rows, Rows]):
    """The rows of a table on a shard. Invariants: rows that are not in `_touched` are zeros in every array, and so is
    their state unless it starts at another number."""

    __slots__ = ("_assemblies", "_first", "_state", "_touched", "_waiting_bytes", "_weight", "cut", "shard")

    def __init__(self, spec: KeyRules, cut: RowCut, shard: int, first: MakeRows) -> None:
        """Raises MemoryError where not even the addresses are to be had."""
        super().__init__(spec, 0, merged)
        self.cut = cut
        self.shard = shard
        self._first = FirstMade(first)
        self._assemblies: Assemblies[Rows] = Assemblies()
        self._waiting_bytes = 0
        shape = (cut.rows_on(shard), cut.width)
        self._weight = zeros_on_demand(shape, cut.dtype)
        self._state = {name: zeros_on_demand(shape, cut.dtype) for name in spec.state}
        self._touched = zeros_on_demand(shape[:1], np.dtype(np.bool_))

    @property
    def nbytes(self) -> int:
        return self._waiting_bytes

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the values, were every row touched."""
        return int(self._weight.nbytes)

    @property
    def touched(self) -> int:
        """How many rows have come into being."""
        return int(np.count_nonzero(self._touched))

    def named(self, slot: int) -> str:
        return f"slot {slot}, key {self.spec.key!r}"

    def check(self, slot: int, step: int, *, pushes: bool) -> None:
        super().check(slot, step, pushes=pushes)
        if not pushes:
            self._assemblies.check(slot, step, self.where(slot, step), count=None)

    def check_chunks(self, slot: int, step: int, first: int, parts: Sequence[Rows], chunks: int) -> None:
        """Raises PushRefusedError where chunks of a push, number `first` and those behind it, contradict what is there
        or each other."""
        self.check(slot, step, pushes=True)
        where = self.where(slot, step)
        self._assemblies.check(slot, step, where, count=chunks)
        before = self._assemblies.part(slot, step, first - 1)
        behind = self._assemblies.part(slot, step, first + len(parts))
        for index, (one, other) in enumerate(pairwise([before, *parts, behind]), first):
            if one is not None and other is not None and not one.ids[-1] < other.ids[0]:
                wrong = min(index, first + len(parts) - 1)
                raise PushRefusedError(f"{where}: rows of chunk {wrong} are not between those beside it")

    def accept_chunk(self, slot: int, step: int, index: int, rows: Rows, chunks: int) -> bool:
        """Takes in what `check_chunks` lets pass, as `accept` does: the slot is in when all its chunks are."""
        if self.steps.is_over(slot, step):
            return False
        parts = self._assemblies.add(slot, step, index, rows, chunks)
        return parts is not None and self.accept(slot, step, joined(parts))

    def accept(self, slot: int, step: int, gradient: Rows | None) -> bool:
        self._waiting_bytes += gradient.nbytes if gradient is not None else 0
        return super().accept(slot, step, gradient)

    def merging(self) -> Generator[None, None, bool]:
        self._waiting_bytes = 0
        return super().merging()

    def replace(self, slot: int) -> None:
        super().replace(slot)
        self._assemblies.drop(slot)

    def answers(self, wait: PullWait) -> Iterator[Answer | None]:
        places = np.zeros(0, np.int64) if wait.ids is None else wait.ids
        a_chunk = self.cut.rows_down
        together = max(self._a_piece // a_chunk, 1) * a_chunk
        version = self.answered_version(wait)
        for number, name in enumerate(self.spec.state if wait.state else (None,)):
            for low in range(0, max(len(places), 1), together):
                some = places[low : low + together]
                array = np.empty((len(some), self.cut.width), self.cut.dtype)
                for begin in range(0, len(some), self._a_piece):
                    piece = slice(begin, begin + self._a_piece)
                    array[piece] = self._read(name, some[piece], of=len(places))
                    yield None
                chunks = np.arange(chunks_of(len(some), a_chunk) + 1)
                bounds = np.minimum(chunks * a_chunk * self.cut.row_bytes, array.nbytes)
                source, first = OneBuffer(bytes_of(array)), low // a_chunk
                yield Answer(number, self.spec.lot, version, first, bounds, source, None, self.spec.priority)

    def is_one_piece(self, wait: PullWait) -> bool:
        arrays = len(self.spec.state) if wait.state else 1
        return wait.ids is None or len(wait.ids) * arrays <= self._a_piece

    @property
    def _a_piece(self) -> int:
        """Rows that are made or read at once."""
        return max(PIECE_ELEMENTS // max(self.cut.width, 1), 1)

    def _read(self, name: str | None, places: Array, *, of: int) -> Array:
        """The value of some rows of a pull of so many, or their state of that name (n, width)."""
        if name is not None:
            return self.state_rows(name, places)
        return self.values(places, keep=of * self.cut.row_bytes <= KEPT_BYTES)

    def values(self, places: Array, *, keep: bool = True) -> Array:
        """Rows (n, width) as they are now, or as they would begin; a new array. `keep`: a push of them may follow."""
        found: Array = np.take(self._weight, places, axis=0)
        new = ~self._touched[places]
        if not self.spec.given and new.any():
            ids = self._ids(places[new])
            found[new] = self._first.shown(ids) if keep else self._first.taken(ids)
        return found

    def state_rows(self, name: str, places: Array) -> Array:
        """The rule's state of rows (n, width); a new array."""
        found: Array = np.take(self._state[name], places, axis=0)
        if start := self.spec.rule.state[name]:
            found[~self._touched[places]] = start
        return found

    def lacks(self, wait: PullWait) -> bool:
        return self.spec.given and wait.ids is not None and not self._touched[wait.ids].all()

    def _lacks_for(self, total: Rows | None) -> bool:
        return self.spec.given and total is not None and not self._touched[total.ids].all()

    def _gradient_elements(self, total: Rows) -> Array:
        return total.values

    @property
    def _fills(self) -> bool:
        return self.spec.given

    def _fill(self, value: Rows) -> None:
        new = ~self._touched[value.ids]
        self._put(Rows(value.ids[new], value.values[new]))

    def _nothing_ahead(self) -> SetsAhead[Rows]:
        rows, width = self._weight.shape
        return RowsAhead(rows, width, self.cut.dtype, a_piece=self._a_piece)

    def _put(self, value: Rows) -> None:
        self._touch(value.ids, first=False)
        self._weight[value.ids] = value.values

    def _apply(self, complete: Complete[Rows]) -> Iterator[None]:
        if complete.total is None:
            return
        rows, step = complete.total, complete.step
        piece = min(max(self.spec.a_piece // max(self.cut.width, 1), 1), self._a_piece)
        for begin in range(0, len(rows.ids), piece):
            ids, gradient = rows.ids[begin : begin + piece], rows.values[begin : begin + piece]
            self._touch(ids, first=True)
            with self._rule_runs(step):
                apply_to_rows(
                    self.spec.rule,
                    self._weight,
                    gradient,
                    self._state,
                    ids,
                    step=self.updates + 1,
                    hyper=self.spec.hyper.at(step),
                )
            if len(rows.ids) > piece:
                yield

    def _touch(self, places: Array, *, first: bool) -> None:
        """Brings rows into being, with their first values where those are wanted."""
        new = places[~self._touched[places]]
        if not new.size:
            return
        if first and not self.spec.given:
            self._weight[new] = self._first.taken(self._ids(new))
        for name, array in self._state.items():
            if start := self.spec.rule.state[name]:
                array[new] = start
        self._touched[new] = True

    def _ids(self, places: Array) -> Array:
        """The table's rows at these places of the shard."""
        found: Array = places * self.cut.shards + self.shard
        return found


def joined(parts: list[Rows]) -> Rows:
    """Chunks of one push, one behind the other."""
    if len(parts) == 1:
        return parts[0]
    return Rows(np.concatenate([part.ids for part in parts]), np.concatenate([part.values for part in parts]))
