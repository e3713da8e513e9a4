"""What is on its way in a table: chunks of pushes, values that were set, the gate, and pulls that wait."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_cluster import constant, ended, open_pulls, store_of, table_of
from store_cluster import given as given_key
from weft_kvstore.arrays import Array, Segment
from weft_kvstore.bucket.steps import PullWait
from weft_kvstore.bucket.update import PIECE_ELEMENTS
from weft_kvstore.description.records import CommitDescription, LossScaling, Mode
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.rows import rows
from weft_kvstore.rows.rows import MOST_RUNS, Chunks, Rows
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.tables import RequestedRows, TableState
from weft_kvstore.wire.codec import PushSegment, RowReader
from weft_kvstore.wire.messages import PayloadKind, Reading

RUNS = 1024
ROWS, WIDTH = 40, 2


@pytest.mark.parametrize("order", [np.arange(RUNS), np.arange(RUNS)[::-1], np.random.default_rng(3).permutation(RUNS)])
def test_a_push_is_whole_when_all_its_chunks_have_come_in_any_order(order: np.ndarray) -> None:
    push, parts = Chunks(RUNS), []
    for number in order.tolist():
        assert not parts
        rows = np.array([3 * number]), np.full((1, 2), number, np.float32)
        parts = list(push.add(number, 1, 1, rows, "slot 0"))
    ids, values = map(np.concatenate, zip(*parts, strict=True))
    assert np.array_equal(ids, 3 * np.arange(RUNS))
    assert np.array_equal(values[:, 0], np.arange(RUNS))


class Table:
    """The one table of a shard, SGD at rate 1 on rows that begin at 0; `rows` counts what is named."""

    def __init__(
        self, *, mode: Mode = Mode.SYNC, given: bool = False, slots: int = 1, commit: CommitDescription | None = None
    ) -> None:
        key = constant(table_of("w", (ROWS, WIDTH), slots), 0.0)
        described = store_of([given_key(key) if given else key], slots=max(slots, 1), shards=1, mode=mode)
        self.job = JobShard(msgspec.structs.replace(described, hyper={"lr": 1.0}, commit=commit), 0)
        (self.state,) = self.job.tables.values()
        self.sent = 0

    def set(self, version: int, number: float, *ids: int, origin: object = None) -> bool:
        """Whether somebody may have waited for it."""
        self.sent += 1
        return self.receive(version, rows_at(ids or (0,), number), self.sent if origin is None else origin)

    def receive(
        self, version: int, some: Rows, origin: object, first: int = 0, count: int = 1, chunks: int = 1
    ) -> bool:
        payload = memoryview(some.ids.tobytes() + some.values.tobytes())
        number = self.state.spec.number
        pushed = PushSegment(PayloadKind.VALUE, 1, number, version, first, count, chunks, [payload])
        return bool(self.state.receive_set(0, pushed, origin))

    def push(self, step: int, *ids: int, slot: int = 0, by: float = -1.0) -> Any:
        """Takes in a gradient, by which rows grow by 1; the merge that is then to be done."""
        self.state.push(slot, step, [Segment(0, 1, [rows_at(ids, by)])])
        return self.state.merging()

    def step(self, step: int, *ids: int, slot: int = 0) -> None:
        for _ in self.push(step, *ids, slot=slot):
            pass

    def read(self, *ids: int) -> list[float]:
        steps = self.state.reading(np.array(ids or (0,)), None)
        return [float(one) for one in ended(steps)[:, 1]]


def rows_at(ids: Any, number: float) -> Rows:
    return Rows(np.array(sorted(ids), np.int64), np.full((len(ids), WIDTH), number, np.float32))


@given(st.lists(st.sets(st.integers(0, ROWS - 1), min_size=1), max_size=8))
def test_of_each_row_the_last_value_that_was_set_holds_at_its_version(sets: list[set[int]]) -> None:
    table, model = Table(), dict.fromkeys(range(ROWS), 0.0)
    for number, ids in enumerate(sets, 1):
        assert not table.set(1, number, *ids)
        model |= dict.fromkeys(ids, float(number))
        assert sum(len(one.ids) for one in table.state._pending_sets[0, 1]) <= 2 * ROWS, (
            "what is set again takes no more memory"
        )
    assert table.state.sets_waiting == int(bool(sets))
    assert table.read(*range(ROWS)) == [0.0] * ROWS
    table.step(0)
    assert table.state.sets_waiting == 0
    assert table.read(*range(ROWS)) == list(model.values())


def test_a_value_holds_at_the_version_that_it_names() -> None:
    table = Table()
    assert not table.set(2, 5.0)
    table.step(0, 0)
    assert table.read() == [1.0]
    table.step(1, 0)
    assert table.read() == [5.0]
    assert table.set(2, 6.0), "it is there already"
    assert table.read() == [6.0]


def test_who_pulls_the_rows_that_were_pushed_gets_them_as_they_were_set_since() -> None:
    table, wait = Table(), PullWait(None, 1, 1, slot=0, state=False, reading=Reading.OWN)
    wait.rows = RequestedRows(table.state, 0)
    wait.rows.ids = np.array([0, 1])
    table.state.add_pull(wait)
    table.step(0, 0, 1)
    assert answered(table, wait) == [1.0, 1.0]
    assert table.set(1, 5.0, 0)
    assert answered(table, wait) == [5.0, 1.0]


def answered(table: Table, wait: PullWait) -> list[float]:
    (run,) = table.state.answers(wait, 1)
    assert run is not None
    (payload,) = run.source(0, run.nbytes)
    return np.frombuffer(payload, np.float32).reshape(-1, WIDTH)[:, 0].tolist()


@pytest.mark.parametrize("common", [0, 1, 10])
def test_rows_that_two_slots_push_are_updated_once_and_both_slots_get_them(common: int) -> None:
    description = store_of(
        [constant(table_of("w", (ROWS, WIDTH), 2), 0.0)], slots=2, shards=1, rule="momentum", hyper={"lr": 1.0}
    )
    (table,) = JobShard(msgspec.structs.replace(description, hyper={"lr": 1.0, "momentum": 0.5}), 0).tables.values()
    velocity, values = np.zeros(ROWS, np.float32), np.zeros(ROWS, np.float32)
    pushed = [range(ROWS), range(ROWS)], [range(20), range(20 - common, 40 - common)]
    for step, ids in enumerate(pushed):
        waits, total = (
            [pull_of(slot, step + 1, slot) for slot in (0, 1)],
            {},
        )
        for wait, own in zip(waits, ids, strict=True):
            wait.rows = RequestedRows(table, 0)
            wait.rows.ids = np.array(own)
            table.add_pull(wait)
            table.push(wait.slot, step, [Segment(0, 1, [rows_at(own, wait.slot + 1.0)])])
            total |= {row: total.get(row, 0.0) + wait.slot + 1.0 for row in own}
        assert ended(table.merging())
        for row, number in total.items():
            velocity[row] = 0.5 * velocity[row] + number
            values[row] -= velocity[row]
        for wait in ready(table):
            (run,) = table.answers(wait, step + 1)
            assert run is not None
            (payload,) = run.source(0, run.nbytes)
            found = np.frombuffer(payload, np.float32).reshape(-1, WIDTH)
            assert found[:, 0].tolist() == found[:, 1].tolist() == values[wait.rows.ids].tolist()
    for name, wanted in ((None, values), ("momentum", velocity)):
        assert ended(table.reading(np.arange(ROWS), name))[:, 1].tolist() == wanted.tolist()


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
    table = Table()
    for step in range(3):
        table.step(step)
    assert not table.set(4, 1.0)
    assert not table.set(5, 1.0)
    with pytest.raises(PushRefusedError, match=told):
        table.set(version, 1.0)
    assert not table.set(5, 2.0), "that version has its place"
    assert table.state.sets_waiting == 2


def test_what_an_update_under_way_has_read_is_set_no_more() -> None:
    table = Table()
    table.step(0)
    table.state.piece_rows = 1
    update = table.push(1, 0, 1, 2)
    next(update)
    with pytest.raises(PushRefusedError, match="it is at version 2 already"):
        table.set(1, 9.0, 1)
    assert not table.set(2, 5.0, 1)
    ended(update)
    assert table.read(0, 1, 2) == [1.0, 5.0, 1.0]


def test_a_value_of_the_version_that_begins_may_be_set_while_others_of_it_are_put() -> None:
    table = Table()
    table.state.piece_rows = 1
    assert not table.set(1, 5.0, 0, 1, 2)
    update = table.push(0, 0)
    next(update)
    assert (table.state.version, table.state.begins) == (1, (0, 1))
    assert not table.set(1, 9.0, 0, 2)
    ended(update)
    assert table.read(0, 1, 2) == [9.0, 5.0, 9.0]


def test_a_value_is_taken_in_once_as_long_as_its_origin_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_kvstore.bucket.sets.SETS_KEPT", 2)
    table, seen = Table(mode=Mode.ASYNC), []
    for number, origin in enumerate("abaca"):
        table.set(0, number, origin=origin)
        seen.append(table.read()[0])
    assert seen == [0.0, 1.0, 1.0, 3.0, 4.0], "a was the first of three"


def test_each_chunk_of_a_set_is_taken_in_once_however_many_there_are() -> None:
    """As those of one call come again, in other runs, once somebody else has pushed."""
    table = Table(mode=Mode.ASYNC)
    table.state.layout = dataclasses.replace(table.state.layout, rows_up=2)
    table.state.reader = RowReader(table.state.layout, 0, "w")
    whole = rows_at(range(ROWS), 7.0)
    for first in range(0, ROWS // 2 - 2):
        part = Rows(whole.ids[2 * first : 2 * first + 2], whole.values[2 * first : 2 * first + 2])
        assert table.receive(0, part, "a", first, 1, ROWS // 2)
    table.step(0, 0, ROWS - 1)
    assert table.receive(0, whole, "a", 0, ROWS // 2, ROWS // 2)
    assert not table.receive(0, whole, "a", 0, ROWS // 2, ROWS // 2)
    assert table.read(*range(ROWS)) == [8.0] + [7.0] * (ROWS - 1)


def test_an_origin_that_is_known_is_never_refused() -> None:
    table = Table()
    table.set(1, 5.0, origin="a")
    for step in range(3):
        table.step(step)
    assert not table.set(1, 1.0, origin="a")
    assert table.read() == [5.0]


def test_what_comes_during_an_update_holds_behind_it_and_does_not_keep_it_from_ending() -> None:
    table = Table(mode=Mode.ASYNC)
    table.state.piece_rows = 1
    update = table.push(0, 0, 1, 2)
    next(update)
    for number in (1.0, 2.0):
        assert not table.set(0, number, 0, 1, 2)
    pieces = sum(1 for number, _ in enumerate(update, 3) if not table.set(0, number, 1))
    assert pieces < 9
    assert table.read(0, 1, 2) == [2.0, 2.0 + pieces, 2.0]


@pytest.mark.parametrize("given", [False, True])
def test_rows_are_set_behind_what_their_slot_has_pushed_unless_that_waits_for_them(given: bool) -> None:
    table = Table(mode=Mode.ASYNC, given=given, slots=2)
    table.set(0, 0.0, 1)
    updates = [table.push(step, *ids, slot=slot) for slot, step, ids in [(0, 0, [0, 1]), (1, 0, [1]), (0, 1, [1])]]
    assert table.set(1, 7.0, 0) is given
    assert not table.set(1, 5.0, 1)
    for update in updates:
        ended(update)
    assert table.read(0, 1) == [8.0 if given else 7.0, 5.0]
    assert not table.state.sets_waiting


def test_of_rows_that_are_set_only_new_ones_come_before_what_their_slot_has_pushed() -> None:
    table = Table(mode=Mode.ASYNC, given=True)
    table.set(0, 0.0, 1)
    ended(table.push(0, 0, 1))
    assert not table.set(1, 5.0, 1)
    assert table.set(1, 7.0, 0, 1)
    ended(table.state.merging())
    assert table.read(0, 1) == [8.0, 7.0]
    assert not table.state.sets_waiting


@pytest.mark.parametrize("updates", [False, True])
def test_rows_that_were_set_behind_pushes_hold_once_a_newer_incarnation_replaces_these(updates: bool) -> None:
    table = Table(mode=Mode.ASYNC, given=True, slots=2)
    table.state.piece_rows = 1
    table.set(0, 0.0, 1, 2, 3)
    ended(table.push(0, 0, 4))
    for number in (5.0, 7.0):
        assert not table.set(1, number, 1)
    update = table.push(0, 2, 3, slot=1)
    if updates:
        next(update)
    table.job.replace(0)
    ended(update)
    assert table.read(1, 2, 3) == [7.0, 1.0, 1.0]
    ended(table.push(0, 1))
    assert table.read(1) == [8.0]
    assert not table.state.sets_waiting


def test_a_slot_that_waits_for_first_values_holds_up_no_other() -> None:
    table = Table(mode=Mode.ASYNC, given=True, slots=2)
    table.set(0, 0.0, 1)
    for slot, step, row in [(0, 0, 2), (1, 0, 1), (0, 1, 1), (1, 1, 1)]:
        ended(table.push(step, row, slot=slot))
    assert table.read(1) == [2.0], "a slot's pushes keep their order"
    assert table.set(0, 0.0, 2)
    ended(table.state.merging())
    ended(table.state.merging())
    assert table.read(1, 2) == [3.0, 1.0]


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.ASYNC])
def test_a_first_value_that_comes_late_undoes_nothing(mode: Mode) -> None:
    table = Table(mode=mode, given=True)
    assert table.set(0, 3.0)
    table.step(0, 0)
    assert table.set(0, 1.0, 0, 1)
    assert table.read(0, 1) == [4.0, 1.0]
    assert table.set(1, 2.0)
    assert table.read() == [2.0]


def test_a_key_that_nobody_contributes_to_holds_at_once() -> None:
    table = Table(given=True, slots=0)
    for version, number in ((7, 1.0), (0, 2.0)):
        assert table.set(version, number)
        assert table.read() == [number]


NORM = 5.0
"""Of the gradient (3, 4)."""


class Gated(Table):
    """A table whose steps are committed, with one slot, whose barrier of step 0 is in."""

    def __init__(self, commit: CommitDescription) -> None:
        super().__init__(commit=commit)
        assert self.job.gate is not None
        self.gate = self.job.gate
        self.gate.arrive(0, 0)

    def take(self, gradient: Array | None) -> None:
        rows = None if gradient is None else [Rows(np.arange(len(gradient)), gradient)]
        self.state.accept(0, 0, Segment(0, 1, rows))

    @property
    def squares(self) -> float:
        measured = self.gate.measured(0)
        assert measured is not None
        return math.fsum(measured.squares) if measured.finite else math.inf


def gradient() -> Array:
    return np.array([[3.0, 0.0], [0.0, 4.0]], np.float32)


def test_a_step_waits_until_it_is_committed_and_is_measured_once() -> None:
    gated, total = Gated(CommitDescription(clip_norm=1.0)), gradient()
    gated.take(total)
    for _ in range(2):
        assert ended(gated.state.merging()) is False
        assert gated.squares == NORM**2, "of one table, though it asked twice"
    waits = gated.state.pull_waits_for(pull_of(1, 1))
    assert waits == ("key 'w' has seen 0 steps; step 0 is measured and waits to be committed", [])
    gated.gate.commit(0, norm=NORM, finite=True)
    assert ended(gated.state.merging()) is True
    np.testing.assert_allclose(gated.read(0, 1), -gradient()[:, 1] / NORM, rtol=1e-6)


def test_rows_of_a_push_that_is_cut_into_pieces_are_clipped_as_others_are() -> None:
    """Also where another push has a few of them, and their sum."""
    table, scale = Table(slots=2, commit=CommitDescription(clip_norm=1.0, loss_scaling=LossScaling(2.0, 1000))), 2.0
    assert table.job.gate is not None
    table.state.piece_rows = 4
    for slot, ids in enumerate([[3], range(16)]):
        table.job.gate.arrive(slot, 0)
        table.state.accept(slot, 0, Segment(0, 1, [rows_at(ids, -scale)]))
    assert ended(table.state.merging()) is False
    measured, squares = table.job.gate.measured(0), 15 * WIDTH + 4 * WIDTH
    assert measured is not None
    assert math.fsum(measured.squares) == squares
    table.job.gate.commit(0, norm=math.sqrt(squares), finite=True)
    assert ended(table.state.merging()) is True
    expected = np.where(np.arange(16) == 3, 2.0, 1.0) / math.sqrt(squares)
    np.testing.assert_allclose(table.read(*range(16)), expected, rtol=1e-6)


def test_a_step_that_is_skipped_has_no_gradient() -> None:
    gated = Gated(CommitDescription(loss_scaling=LossScaling(2.0, 1000)))
    gated.take(np.array([[np.inf, 1.0]], np.float32))
    assert ended(gated.state.merging()) is False
    assert gated.squares == math.inf
    gated.gate.commit(0, norm=math.inf, finite=False)
    assert ended(gated.state.merging()) is True
    assert (gated.state.version, gated.state.updates, gated.read()) == (1, 0, [0.0])


def test_the_scale_of_the_loss_is_taken_off_before_it_is_measured() -> None:
    gated = Gated(CommitDescription(loss_scaling=LossScaling(2.0, 1000)))
    gated.take(2 * gradient())
    assert ended(gated.state.merging()) is False
    assert gated.squares == NORM**2
    gated.gate.commit(0, norm=NORM, finite=True)
    assert ended(gated.state.merging()) is True
    assert gated.read(0, 1) == [0.0, -4.0]


def test_a_step_without_a_gradient_measures_nothing() -> None:
    gated = Gated(CommitDescription(clip_norm=1.0))
    gated.take(None)
    assert ended(gated.state.merging()) is False
    assert gated.squares == 0
    gated.gate.commit(0, norm=NORM, finite=True)
    assert ended(gated.state.merging()) is True
    assert gated.state.version == 1


def test_a_long_gradient_is_measured_in_pieces() -> None:
    gated = Gated(CommitDescription(clip_norm=1.0))
    total = np.ones((PIECE_ELEMENTS + 1, WIDTH), np.float32)
    gated.take(total)
    assert len(list(gated.state.merging())) == 3
    assert gated.squares == total.size


def test_what_many_slots_pushed_is_merged_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows each has: what was looked at is added up over all of them."""
    slots, count, among, piece = 3 * MOST_RUNS, 400, 100_000, 1 << 13
    used, draw, wanted = [0], np.random.default_rng(1), np.zeros((among, WIDTH), np.float32)

    def look_up(ids: Array, here: Array) -> tuple[Array, Array, int]:
        used[-1] += len(ids) + min(len(here), 16 * len(ids))
        return common(ids, here)

    common = rows._common
    monkeypatch.setattr(rows, "_common", look_up)
    monkeypatch.setattr(rows, "SMALL_ELEMENTS", piece)
    monkeypatch.setattr("weft_kvstore.tables.PIECE_ELEMENTS", piece)
    description = store_of([constant(table_of("w", (among, WIDTH), slots), 0.0)], slots=slots, shards=1)
    (table,) = JobShard(msgspec.structs.replace(description, hyper={"lr": 1.0}), 0).tables.values()
    pushes = []
    for _ in range(slots):
        ids = np.sort(draw.choice(among, count, replace=False))
        pushes.append(Rows(ids, draw.standard_normal((count, WIDTH)).astype(np.float32)))
        wanted[ids] += pushes[-1].values
    for slot in reversed(range(slots)):  # All wait for the first.
        table.push(slot, 0, [Segment(0, 1, [pushes[slot]])])
    for _ in table.merging():
        used.append(0)
    assert table.version == 1
    assert sum(used) > 16 * piece
    assert max(used) < 2 * piece
    assert np.array_equal(ended(table.reading(np.arange(among), None)), -wanted)


def pull_of(request: int, version: int = 0, slot: int = 0) -> PullWait:
    """Its ids have come."""
    wait = PullWait(None, request, version, slot=slot, state=False, reading=Reading.OWN)
    wait.want(0, 0, 1)
    return wait


def ready(state: TableState) -> list[PullWait]:
    """The pulls that can be answered, which wait no longer."""
    found = [one for one in state.pulls_of() if state.ready(one)]
    for one in found:
        state.forget_pull(one)
    return found


def waiting(state: TableState) -> list[int]:
    return [one.request for one in open_pulls(state)]


def test_pulls_that_are_ready_are_taken_in_their_order_and_the_others_stay() -> None:
    table = Table()
    for request in range(6):
        table.state.add_pull(pull_of(request, version=request % 2))
    assert [one.request for one in ready(table.state)] == [0, 2, 4]
    assert waiting(table.state) == [1, 3, 5]
    assert ready(table.state) == []
    table.step(0)
    assert [one.request for one in ready(table.state)] == [1, 3, 5]
    assert waiting(table.state) == []


def test_pulls_of_versions_to_come_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    table, asked = Table(), []

    def can(_: TableState, wait: PullWait, *_range: int) -> Array:
        asked.append(wait.version)
        return np.ones(1, np.bool_)

    monkeypatch.setattr(TableState, "can_answer", can)
    for version in reversed(range(100)):
        table.state.add_pull(pull_of(version, version))
    for version in range(100):
        ready(table.state)
        table.step(version)
    assert asked == list(range(100))


def test_a_cancelled_pull_is_not_asked_whether_it_is_ready() -> None:
    table = Table(given=True)
    waits = [pull_of(request) for request in range(3)]
    for one in waits:
        one.rows = RequestedRows(table.state, 0)
        one.rows.ids = np.array([0])
        one.want(table.state.spec.number, 0, 1)
        table.state.add_pull(one)
    waits[0].drop({table.state.spec.number: table.state})
    assert ready(table.state) == []
    assert waiting(table.state) == [1, 2]
