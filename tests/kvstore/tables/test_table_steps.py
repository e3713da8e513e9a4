"""What is on its way in a table: chunks of pushes, values that were set, the gate, and pulls that wait."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_cluster import given as given_key
from store_cluster import key_of, store_of
from weft_kvstore.arrays import Array
from weft_kvstore.bucket.bucket import PIECE_ELEMENTS, PullWait
from weft_kvstore.bucket.gate import StepGate
from weft_kvstore.description.records import CommitDescription, KeyDescription, LossScaling, Merge, Mode
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.rows.rows import Rows, is_ascending
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.tables import steps as tables_steps
from weft_kvstore.tables.state import LEAST_WAITS, WaitingPulls
from weft_kvstore.tables.steps import (
    ChunkRun,
    Complete,
    RowPushes,
    RowsAhead,
    TableGate,
    TableSets,
    TableSpec,
    TableSteps,
)
from weft_kvstore.wire.messages import Reading

RUNS = 1024


class Counted(ChunkRun):
    """A run that counts how often anybody looks at one."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        Counted.looks += 1
        return super().__getattribute__(name)


@pytest.mark.parametrize("order", [np.arange(RUNS), np.arange(RUNS)[::-1], np.random.default_rng(3).permutation(RUNS)])
def test_a_run_is_put_in_its_place_without_a_look_at_all_others(order: np.ndarray) -> None:
    pushes = RowPushes(1)
    Counted.looks = 0
    whole = None
    for number in order.tolist():
        run = Counted(number, number + 1, Rows(np.array([3 * number]), np.full((1, 2), number, np.float32)))
        new = pushes.fitting(0, 0, run, RUNS, "slot 0")
        assert new == [run]
        assert whole is None
        whole = pushes.add(0, 0, new, RUNS)
    assert whole is not None
    assert np.array_equal(whole.ids, 3 * np.arange(RUNS))
    assert np.array_equal(whole.values[:, 0], np.arange(RUNS))
    assert Counted.looks < 20 * RUNS * np.log2(RUNS)


def test_a_gradient_of_a_slots_next_step_is_taken_in_at_once_and_no_other() -> None:
    """As `accept` would: both ways lead to the same sums, and what is not next is left to it."""
    ways = [TableSteps((3, 5), Merge.SLOT) for _ in range(2)]
    rows = [Rows(np.array([number]), np.full((1, 2), number, np.float32)) for number in range(4)]
    said = [(3, 0, 0), (5, 1, 1), (5, 0, 2), (3, 0, 3), (4, 0, 3)]
    at_once, as_others = ways
    assert [at_once.take_next(slot, step, rows[number]) for slot, step, number in said] == [
        True,
        None,
        True,
        None,
        None,
    ], "in order, early, in order, again, and of a slot that does not contribute"
    for slot, step, number in ((3, 0, 0), (5, 0, 2), (3, 0, 3)):
        as_others.accept(slot, step, rows[number])
    for steps in ways:
        while steps.merge_next() is not None:
            pass
        due = steps.due()
        assert due is not None
        assert due.total is not None
        assert due.total.ids.tolist() == [0, 2]
        steps.advance()
        assert (steps.version, steps.holds) == (1, False)
    early = TableSteps((3,), Merge.SLOT)
    early.accept(3, 1, rows[1])
    assert early.take_next(3, 0, rows[0]) is None, "what came early follows it"
    assert early.holds


ROWS, WIDTH = 40, 2
SETS = st.lists(st.sets(st.integers(0, ROWS - 1)), max_size=8)


def rows_at(ids: set[int], number: float, dtype: type) -> Rows:
    return Rows(np.array(sorted(ids), dtype), np.full((len(ids), WIDTH), number, np.float32))


def read(ahead: RowsAhead) -> dict[int, float]:
    """What waits, by place."""
    found: dict[int, float] = {}
    for part in [ahead.rows()] if len(ahead) else []:
        assert is_ascending(part.ids)
        assert (part.values == part.values[:, :1]).all()
        new = dict(zip(part.ids.tolist(), part.values[:, 0].tolist(), strict=True))
        assert not new.keys() & found.keys(), "each place once"
        found |= new
    return found


def none_of() -> RowsAhead:
    return RowsAhead()


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@given(sets=SETS)
def test_of_each_place_the_last_value_waits(dtype: type, sets: list[set[int]]) -> None:
    ahead, model = none_of(), {}
    for number, ids in enumerate(sets):
        ahead.add(rows_at(ids, number, dtype))
        model |= dict.fromkeys(ids, float(number))
    assert len(ahead) == int(bool(model)), "one part, however often it is set"
    assert read(ahead) == model


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_what_is_set_again_takes_memory_twice_at_most(dtype: type) -> None:
    ahead = none_of()
    ahead.add(rows_at(set(range(20)), 1.0, dtype))
    for number in range(9):
        ahead.add(rows_at(set(range(20)), number, dtype))
        assert sum(map(len, ahead._parts)) <= 2 * 20


def test_ids_of_a_growing_table_are_any_64_bits() -> None:
    ahead = none_of()
    ahead.add(rows_at({2**64 - 1, 2**63, 0}, 3.0, np.uint64))
    assert read(ahead) == dict.fromkeys((2**64 - 1, 2**63, 0), 3.0)


def value_of(number: float) -> Rows:
    return Rows(np.zeros(1, np.int64), np.full((1, 1), number, np.float32))


class Unit:
    """A unit's sets at a version that the test says; `put` and `filled` are what they have set, newest last."""

    def __init__(self, *, mode: Mode = Mode.SYNC, given: bool = False, slots: int = 2) -> None:
        key = key_of("w", (1,), slots)
        self.steps = SimpleNamespace(version=0)
        self.put: list[float] = []
        self.filled: list[float] = []
        self.sets = TableSets(
            rules_of(given_key(key) if given else key, mode),
            self.steps,  # type: ignore[arg-type]  # of steps only the version is looked at
            SimpleNamespace(
                put=lambda value: self.put.append(float(value.values[0, 0])),
                fill=lambda value: self.filled.append(float(value.values[0, 0])),
            ),
            8,
        )
        self.sent = 0

    def set(self, version: int, number: float, *, is_changing: bool = False, origin: object = None) -> bool:
        """Whether somebody may have waited for it."""
        self.sent += 1
        origin = self.sent if origin is None else origin
        self.sets.check(0, version, origin)
        return self.sets.accept(version, value_of(number), origin, is_changing=is_changing)

    def due(self) -> list[float]:
        """What the end of an update puts."""
        before = len(self.put)
        for _ in self.sets.put_due():
            pass
        return self.put[before:]


def rules_of(key: KeyDescription, mode: Mode) -> TableSpec:
    table = msgspec.structs.replace(key, rows=True, shape=(1, 1))
    (unit,) = JobShard(store_of([table], slots=2, shards=1, mode=mode), 0).tables.values()
    return unit.spec


def test_a_value_holds_at_the_version_that_it_names() -> None:
    unit = Unit()
    assert not unit.set(2, 5.0)
    assert unit.sets.waiting == 1
    for version in (1, 2):
        unit.steps.version = unit.sets.reached = version
        assert unit.due() == ([5.0] if version == 2 else [])
    assert unit.sets.waiting == 0
    assert unit.set(2, 6.0), "it is there already"
    assert unit.put == [5.0, 6.0]


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (0, "slot 0, key 'w', version 0: the value cannot be set: version 0 is the initializer's"),
        (2, "version 2: the value cannot be set: it is at version 3 already"),
        (12, "more than 8 ahead of version 3"),
        (6, r"values wait for versions \[4, 5\] already"),
    ],
)
def test_what_cannot_be_set_is_refused_by_version(version: int, told: str) -> None:
    unit = Unit()
    unit.steps.version = unit.sets.reached = 3
    assert not unit.set(4, 1.0)
    assert not unit.set(5, 1.0)
    with pytest.raises(PushRefusedError, match=told):
        unit.set(version, 1.0)
    assert not unit.set(5, 2.0), "that version has its place"
    assert (unit.sets.waiting, unit.put, unit.filled) == (2, [], [])


def test_what_an_update_under_way_has_read_is_set_no_more() -> None:
    unit = Unit()
    unit.steps.version, unit.sets.reached = 3, 4
    with pytest.raises(PushRefusedError, match="it is at version 4 already"):
        unit.set(3, 1.0, is_changing=True)
    assert not unit.set(4, 2.0, is_changing=True)
    unit.steps.version = 4
    assert unit.due() == [2.0]


def test_a_value_is_taken_in_once_as_long_as_its_origin_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_steps, "SETS_KEPT", 2)
    unit = Unit(mode=Mode.ASYNC)
    assert [unit.set(0, number, origin=one) for number, one in enumerate("aba")] == [True, True, False]
    assert [unit.set(0, number, origin=one) for number, one in enumerate("ca", 3)] == [True, True]
    assert unit.put == [0.0, 1.0, 3.0, 4.0], "a was the first of three"


def test_an_origin_that_is_known_is_never_refused() -> None:
    unit = Unit()
    unit.set(1, 1.0, origin="a")
    unit.steps.version = unit.sets.reached = 4
    assert not unit.set(1, 1.0, origin="a")
    assert unit.put == []


def test_what_comes_during_an_update_holds_behind_it_and_does_not_keep_it_from_ending() -> None:
    unit = Unit(mode=Mode.ASYNC)
    for number in (1.0, 2.0):
        assert unit.set(0, number, is_changing=True)
    assert unit.put == [], "nothing is put while rows are half updated"
    ending: Iterator[None] = unit.sets.put_due()
    for number, _ in enumerate(ending, 3):
        if number < 9:
            assert unit.set(0, number, is_changing=True)
    assert unit.put == [1.0, 2.0, 3.0, 4.0], "who brings one puts one, in their order"
    assert unit.set(0, 9.0, is_changing=True)
    assert unit.put[-1] == 4.0, "the next update has begun"


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.ASYNC])
def test_a_first_value_that_comes_late_undoes_nothing(mode: Mode) -> None:
    unit = Unit(mode=mode, given=True)
    unit.steps.version = unit.sets.reached = 3
    assert unit.set(0, 1.0)
    assert unit.set(3, 2.0)
    assert (unit.filled, unit.put) == ([1.0], [2.0])


def test_a_key_that_nobody_contributes_to_holds_at_once() -> None:
    unit = Unit(given=True, slots=0)
    assert unit.set(7, 1.0)
    assert unit.set(0, 2.0)
    assert unit.put == [1.0, 2.0]


NORM = 5.0
"""Of the gradient (3, 4)."""


class Gated:
    """The only table of a shard with one slot, whose barrier of step 0 is in."""

    def __init__(self, commit: CommitDescription) -> None:
        self.gate = StepGate(commit, 1)
        self.gate.expect(1)
        self.gate.arrive(0, 0)
        self.unit = TableGate(self.gate)

    def passing(self, total: Array | None) -> Complete[Rows] | None:
        return ended(self.unit.passing(Complete(0, None if total is None else rows_of(total))))[0]


def ended(steps: Generator[None, None, Any]) -> tuple[Any, int]:
    """What work gives in the end, and after how many pieces."""
    pieces = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, pieces
        pieces += 1


def rows_of(total: Array) -> Rows:
    """A row for each element, which is where it was."""
    return Rows(np.arange(len(total)), total.reshape(-1, 1))


def gradient() -> Array:
    return np.array([3.0, 4.0], np.float32)


def test_a_step_waits_until_it_is_committed_and_is_measured_once() -> None:
    gated, total = Gated(CommitDescription(clip_norm=1.0)), gradient()
    assert gated.unit.missing(0) is None
    assert gated.passing(total) is None
    assert gated.unit.missing(0) == ("step 0 is measured and waits to be committed", [])
    assert gated.passing(total) is None
    measured = gated.gate.measurement(0)
    assert measured is not None
    assert math.fsum(measured.squares) == NORM**2, "of one unit, though it asked twice"
    gated.gate.commit(0, norm=NORM, finite=True)
    passed = gated.passing(total)
    assert passed is not None
    assert passed.total is not None
    assert np.shares_memory(passed.total.values, total)
    np.testing.assert_allclose(total, gradient() / NORM, rtol=1e-6)


def test_a_step_that_is_skipped_has_no_gradient() -> None:
    gated = Gated(CommitDescription(loss_scaling=LossScaling(2.0, 1000)))
    assert gated.passing(np.array([np.inf, 1.0], np.float32)) is None
    measured = gated.gate.measurement(0)
    assert measured is not None
    assert not measured.finite
    gated.gate.commit(0, norm=math.inf, finite=False)
    assert gated.passing(gradient()) == Complete(0, None)


def test_the_scale_of_the_loss_is_taken_off_before_it_is_measured() -> None:
    gated, total = Gated(CommitDescription(loss_scaling=LossScaling(2.0, 1000))), 2 * gradient()
    assert gated.passing(total) is None
    measured = gated.gate.measurement(0)
    assert measured is not None
    assert math.fsum(measured.squares) == NORM**2
    gated.gate.commit(0, norm=NORM, finite=True)
    assert gated.passing(total) is not None
    assert np.array_equal(total, gradient())


def test_a_step_without_a_gradient_measures_nothing() -> None:
    gated = Gated(CommitDescription(clip_norm=1.0))
    assert gated.passing(None) is None
    measured = gated.gate.measurement(0)
    assert measured is not None
    assert math.fsum(measured.squares) == 0
    gated.gate.commit(0, norm=NORM, finite=True)
    assert gated.passing(None) == Complete(0, None)


def test_a_long_gradient_is_measured_in_pieces() -> None:
    gated = Gated(CommitDescription(clip_norm=1.0))
    total = np.ones(2 * PIECE_ELEMENTS + 1, np.float32)
    found, pieces = ended(gated.unit.passing(Complete(0, rows_of(total))))
    assert (found, pieces) == (None, 3)
    measured = gated.gate.measurement(0)
    assert measured is not None
    assert math.fsum(measured.squares) == len(total)


def pull_of(request: int, version: int = 0) -> PullWait:
    return PullWait(None, request, version, slot=0, state=False, reading=Reading.OWN)


def test_those_that_are_ready_are_taken_in_their_order_and_the_others_stay() -> None:
    waits = WaitingPulls()
    for request in range(6):
        waits.add(pull_of(request, version=request % 2), request % 2)
    assert [one.request for one in waits.take(1, lambda one: one.version == 0)] == [0, 2, 4]
    assert [one.request for one in waits] == [1, 3, 5]
    assert waits.take(1, lambda _: False) == []
    assert len(waits) == 3


def test_those_of_versions_to_come_are_not_looked_at() -> None:
    waits, asked = WaitingPulls(), []

    def is_ready(wait: PullWait) -> bool:
        asked.append(wait.version)
        return True

    for version in reversed(range(100)):
        waits.add(pull_of(version, version), version)
    for version in range(100):
        waits.take(version, is_ready)
    assert asked == list(range(100))


def test_one_that_was_given_up_is_not_asked_whether_it_is_ready() -> None:
    waits, asked = WaitingPulls(), []
    for request in range(3):
        waits.add(pull_of(request), 0)
    next(iter(waits)).drop()

    def is_ready(wait: PullWait) -> bool:
        asked.append(wait.request)
        return False

    assert waits.take(0, is_ready) == []
    assert asked == [one.request for one in waits] == [1, 2]


def test_those_that_were_given_up_are_bounded_by_those_that_were_not() -> None:
    waits, kept = WaitingPulls(), 100
    for request in range(kept):
        waits.add(pull_of(request), 0)
    for request in range(kept, 5000):
        gone = pull_of(request)
        waits.add(gone, 0)
        gone.drop()
        assert len(waits) <= 2 * (kept + 1), "the one that comes is not given up yet"
    assert [one.request for one in waits if not one.dropped] == list(range(kept))
    assert len(WaitingPulls()) == 0 < LEAST_WAITS
