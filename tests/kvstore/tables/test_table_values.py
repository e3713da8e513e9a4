"""Rows of a table: as they begin, what is kept of first values, as they were left, and rules that fail."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import msgspec
import numpy as np
import pytest

from store_cluster import constant, store_of, table_of
from store_cluster import given as given_key
from weft_kvstore.arrays import Array, Segment
from weft_kvstore.bucket.steps import JobFailedError, PullWait
from weft_kvstore.description.records import GrowthDescription, KeyDescription, Sparse
from weft_kvstore.rows import row_arrays as rows_arrays
from weft_kvstore.rows.row_arrays import RowArrays
from weft_kvstore.rows.rows import Rows
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.sharding import routing_of
from weft_kvstore.tables import RequestedRows, TableSpec, TableState
from weft_kvstore.wire.messages import Reading

ROWS, WIDTH = 12, 2


class Source:
    """Makes rows of their own ids, and counts what it made."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def __call__(self, ids: Array) -> Array:
        self.made += ids.tolist()
        values: Array = np.repeat(ids.astype(np.float32)[:, None], WIDTH, axis=1)
        return values


def ids_of(*ids: int) -> Array:
    return np.array(ids, np.int64)


RATE = 0.5


def finished(steps: Generator[None, None, Array]) -> Array:
    """What work gives in the end, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class Table:
    """The one table of a store, SGD with momentum on rows that begin at their own number."""

    def __init__(self, key: KeyDescription, *, piece_rows: int = 100, sparse: Sparse = Sparse.LAZY) -> None:
        description = store_of([key], slots=1, shards=1, rule="momentum", hyper={"lr": RATE, "momentum": 0.5})
        (unit,) = JobShard(description, 0).tables.values()
        self.made: list[int] = []
        cut = routing_of(description).tables[0]
        self.state = TableState(unit.spec, cut, 0, self._first, sparse=sparse, salt=1)
        self.state.piece_rows = piece_rows

    def _first(self, ids: Array) -> Array:
        self.made += ids.tolist()
        return np.repeat(ids.astype(np.float32)[:, None], WIDTH, axis=1)

    def read(self, *ids: int, name: str | None = None) -> list[float]:
        rows = finished(self.state.reading(places_of(*ids), name))
        assert rows.shape == (len(ids), WIDTH)
        return [float(one) for one in rows[:, 1]]

    def apply(self, *ids: int, by: float = 1.0) -> int:
        """A step's gradient of these rows. After how many pieces the update had ended."""
        self.state.accept(0, self.state.version, Segment(0, 1, [rows_of(*ids, number=by)]))
        return len(list(self.state.merging()))


def places_of(*ids: int) -> Array:
    return np.array(ids, np.int64)


def rows_of(*ids: int, number: float) -> Rows:
    return Rows(places_of(*ids), np.full((len(ids), WIDTH), number, np.float32))


def a_table() -> KeyDescription:
    return table_of("t", (ROWS, WIDTH), 1)


def test_a_row_begins_when_it_is_first_touched_and_not_when_it_is_read() -> None:
    table = Table(a_table())
    assert table.read(1, 5, 7) == [1.0, 5.0, 7.0]
    assert table.state.rows.count == 0
    table.apply(5)
    assert table.read(1, 5, 7) == [1.0, 5.0 - RATE, 7.0]
    assert table.read(1, 5, 7, name="momentum") == [0.0, 1.0, 0.0]
    assert table.state.rows.count == 1
    assert table.made == [1, 5, 7, 5, 1, 7], "a first value is computed again until its row is there"


def test_what_is_put_holds_and_what_is_filled_only_where_nothing_is() -> None:
    table = Table(given_key(a_table()))
    table.state._write(rows_of(2, 3, number=9.0))
    table.state._write(rows_of(3, 4, number=8.0), only_new=True)
    assert table.read(2, 3, 4) == [9.0, 9.0, 8.0]
    assert table.made == [], "a table that is given has no first values"


def test_a_long_update_is_made_in_pieces_to_the_same_bits() -> None:
    tables = [Table(a_table(), piece_rows=piece_rows) for piece_rows in (3, 100)]
    assert [table.apply(*range(10)) for table in tables] == [4, 0]
    assert tables[0].read(*range(ROWS)) == tables[1].read(*range(ROWS))


def test_gradients_of_rows_that_were_not_admitted_are_dropped() -> None:
    key = msgspec.structs.replace(table_of("t", (0, WIDTH), 1), growth=GrowthDescription(uses=2))
    table = Table(key)
    for number in range(3):
        ids = np.array([4, 5 + number], np.uint64)
        table.state.accept(0, number, Segment(0, 1, [Rows(ids, np.ones((2, WIDTH), np.float32))]))
        assert list(table.state.merging()) == []
    assert table.state.rows.count == 1
    found = finished(table.state.reading(np.array([4, 5], np.uint64), None))
    assert found[:, 0].tolist() == [4 - RATE * (1 + 1.5), 5.0], "the first use of 4, and all of the others"


def is_short(table: Table, *ids: int) -> bool:
    wait = PullWait(None, 1, 0, slot=0, state=False, reading=Reading.OWN)
    wait.rows = RequestedRows(table.state, 0)
    wait.rows.ids = places_of(*ids)
    return table.state.fits_one_piece(wait)


def test_rows_that_missed_many_updates_are_long_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_arrays, "LEAST_BEHIND", rows_arrays.MOST_BEHIND)
    table = Table(constant(a_table(), 1.0), sparse=Sparse.STANDARD)
    table.apply(1, 2)
    assert is_short(table, 1, 2)
    for _ in range(3000):
        table.apply(1)
    assert not is_short(table, 2)
    assert is_short(table, 1), "it has seen them all"
    table.read(2)
    assert is_short(table, 2), "a row that is read is brought up to date for good"


@pytest.mark.parametrize("sparse", list(Sparse))
def test_a_rule_that_fails_is_told_with_its_key_and_step(sparse: Sparse, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(a_table(), sparse=sparse)

    def none(*_: object, **_named: object) -> Iterator[None]:
        raise ValueError("of my own")

    monkeypatch.setattr(RowArrays, "apply", none)
    with pytest.raises(JobFailedError, match="rule 'momentum' failed on key 't', step 0: of my own"):
        table.apply(3)


def rules() -> TableSpec:
    (unit,) = JobShard(store_of([a_table()], slots=1, shards=1, rule="adagrad"), 0).tables.values()
    return unit.spec


@pytest.mark.parametrize("error", [ValueError("told"), ZeroDivisionError("told"), MemoryError("told"), MemoryError()])
def test_what_a_rule_raises_on_its_numbers_is_told_with_its_key_and_step(error: Exception) -> None:
    told = f"^rule 'adagrad' failed on key 't', step 4: {str(error) or 'MemoryError'}$"
    with pytest.raises(JobFailedError, match=told), rules().rule_runs(4):
        raise error


def test_any_other_error_is_a_fault_of_the_store_and_stays_as_it_is() -> None:
    with pytest.raises(KeyError), rules().rule_runs(4):
        raise KeyError("w")
