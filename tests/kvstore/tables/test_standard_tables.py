"""Standard row-sparse semantics in the store: a table has the bits of a dense key whose other gradients are zero."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import constant, key_of, store_of, table_of
from store_cluster import given as given_key
from store_simulation import Simulation
from weft_kernels.rules.lookup import rules
from weft_kvstore.description.check import rule_of
from weft_kvstore.description.records import (
    CommitDescription,
    EvictionDescription,
    GrowthDescription,
    KeyDescription,
    LossScaling,
    Mode,
    Sparse,
    StoreDescription,
)
from weft_kvstore.rows import row_arrays as rows_arrays
from weft_kvstore.tables import TableState

Array = np.ndarray[Any, np.dtype[Any]]

ROWS, WIDTH = 45, 8
FALLING = {"schedule": "linear", "start": 0.4, "end": 0.01, "steps": 30}


def standard(key: KeyDescription) -> KeyDescription:
    return msgspec.structs.replace(key, sparse=Sparse.STANDARD)


def described(key: KeyDescription, slots: int = 1, shards: int = 1, **others: Any) -> StoreDescription:
    return store_of([key], slots=slots, shards=shards, **{"slice_bytes": 256, **others})


class Store:
    """A simulated store of one key, driven call by call."""

    def __init__(self, description: StoreDescription) -> None:
        self.simulation = Simulation(description)
        self.choose = random.Random(3)

    def __call__(self, call: str, *arguments: Any, slot: int = 0, **named: Any) -> Any:
        future = getattr(self.simulation.stores[slot], call)(*arguments, **named)
        self.simulation.finish(self.choose, future)
        return future.result(0)

    @property
    def tables(self) -> list[TableState]:
        return [table for core in self.simulation.shards for table in core.job.tables.values()]


class Dense:
    """The rule on all rows, by hand."""

    def __init__(self, description: StoreDescription, first: Array) -> None:
        self.rule = rule_of(description, description.keys[0])
        self.hyper = {**self.rule.hyper, **description.hyper}
        self.weight = first.copy()
        self.state = {name: np.full_like(first, start) for name, start in self.rule.state.items()}
        self.updates = 0

    def update(self, ids: Array, rows: Array) -> None:
        gradient = np.zeros_like(self.weight)
        gradient[ids] = rows
        self.updates += 1
        self.rule.apply(self.weight, gradient, self.state, self.updates, self.hyper)


RULES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "adam": ("adam", {"lr": 0.1}),
    "adam, falling": ("adam", {"lr": FALLING}),
    "adamw": ("adamw", {"lr": 0.1, "weight_decay": 0.1}),
    "momentum": ("momentum", {"lr": 0.1}),
    "momentum, decay": ("momentum", {"lr": FALLING, "weight_decay": 0.3}),
    "nesterov": ("nesterov", {"lr": 0.1}),
    "rmsprop": ("rmsprop", {"lr": 0.1, "weight_decay": 0.1}),
    "ftrl": ("ftrl", {"lr": 0.5}),
    "sgd, decay": ("sgd", {"lr": 0.1, "weight_decay": 0.2}),
}


@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize("name", RULES)
def test_a_table_has_the_bits_of_the_dense_key(name: str, shards: int) -> None:
    rule, hyper = RULES[name]
    table = Store(described(standard(table_of("t", (ROWS, WIDTH), 2)), 2, shards, rule=rule, hyper=hyper))
    dense = Store(described(key_of("t", (ROWS, WIDTH), 2), 2, rule=rule, hyper=hyper))
    draw = np.random.default_rng(shards)
    for step in range(12):
        for slot in (0, 1):
            ids = draw.choice(ROWS // 2, draw.integers(0, 9), replace=False).astype(np.int64)
            gradient = np.zeros((ROWS, WIDTH), np.float32)
            gradient[ids] = draw.standard_normal((len(ids), WIDTH))
            if step == 6:
                table("barrier", step, ["t"], slot=slot)
                dense("barrier", step, ["t"], slot=slot)
                continue
            table("push", "t", step, gradient[ids], ids, slot=slot)
            dense("push", "t", step, gradient, slot=slot)
        if step % 3 == 2:
            asked = draw.choice(ROWS, 15)
            whole = dense("pull", "t", step + 1)
            assert table("pull", "t", step + 1, asked).tobytes() == whole[asked].tobytes()
            state, wanted = table("pull", "t", step + 1, asked, state=True), dense("pull", "t", step + 1, state=True)
            assert list(state) == list(wanted)
            assert all(state[one].tobytes() == wanted[one][asked].tobytes() for one in wanted)
    assert sum(one.rows.count for one in table.tables) <= ROWS // 2, "a pull brings no row into being"


def test_lazy_rows_do_not_move_and_standard_ones_do() -> None:
    found = {}
    for sparse in Sparse:
        key = msgspec.structs.replace(constant(table_of("t", (4, WIDTH), 1), 0.0), sparse=sparse)
        store = Store(described(key, rule="momentum", hyper={"lr": 1.0, "momentum": 0.5}))
        for step in range(3):
            store("push", "t", step, np.ones((1, WIDTH), np.float32), np.array([step]))
        found[sparse] = store("pull", "t", 3, np.arange(4))[:, 0].tolist()
    assert found == {Sparse.LAZY: [-1.0, -1.0, -1.0, 0.0], Sparse.STANDARD: [-1.75, -1.5, -1.0, 0.0]}


@pytest.mark.parametrize(("rule", "come"), [("adam", ROWS - 3), ("momentum", ROWS - 3), ("adamw", ROWS)])
def test_rows_that_nobody_meets_are_swept_and_what_they_needed_is_forgotten(
    rule: str, come: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rows are never touched: they come into being where their first values decay."""
    monkeypatch.setattr(rows_arrays, "MOST_BEHIND", 7)
    monkeypatch.setattr(rows_arrays, "SWEEP_PERIOD", 4)
    description = described(standard(constant(table_of("t", (ROWS, WIDTH), 1), 1.0)), shards=2, rule=rule)
    store, dense = Store(description), Dense(description, np.ones((ROWS, WIDTH), np.float32))
    draw = np.random.default_rng(4)
    for step in range(60):
        ids = np.arange(ROWS - 3) if step == 0 else np.array([int(draw.integers(0, 3))])
        rows = draw.standard_normal((len(ids), WIDTH)).astype(np.float32)
        store("push", "t", step, rows, ids)
        dense.update(ids, rows)
    for table in store.tables:
        assert table.rows.history is not None
        log = table.rows.history._log
        assert log.last == 60
        assert log.last + 1 - log.first <= 7 + 2 * 5
        assert (table.rows.history.seen.array[table.rows.history.seen.array > 0] >= 60 - 7 - 5).all()
    assert sum(table.rows.count for table in store.tables) == come
    assert store("pull", "t", 60, np.arange(ROWS)).tobytes() == dense.weight.tobytes()


def test_rows_that_are_set_keep_the_state_that_updates_left() -> None:
    description = described(standard(constant(table_of("t", (6, WIDTH), 1), 1.0)), rule="adamw")
    store, dense = Store(description), Dense(description, np.ones((6, WIDTH), np.float32))
    ones = np.ones((2, WIDTH), np.float32)
    for step in range(9):
        if step == 4:
            store("set", "t", 5, 3 * ones, np.array([1, 5]))
        ids = np.array([step % 2, 2])
        store("push", "t", step, ones, ids)
        dense.update(ids, ones)
        if step == 4:
            dense.weight[[1, 5]] = 3
    assert store("pull", "t", 9, np.arange(6)).tobytes() == dense.weight.tobytes()
    state = store("pull", "t", 9, np.arange(6), state=True)
    assert all(state[name].tobytes() == array.tobytes() for name, array in dense.state.items())


def test_rows_that_are_given_late_have_seen_every_update() -> None:
    description = described(standard(given_key(table_of("t", (4, WIDTH), 1))), rule="sgd", hyper={"weight_decay": 0.5})
    store, dense = Store(description), Dense(description, np.ones((4, WIDTH), np.float32))
    one = np.ones((1, WIDTH), np.float32)
    store("set", "t", 0, one, np.array([1]))
    for step in range(3):
        store("push", "t", step, one, np.array([1]))
        dense.update(np.array([1]), one)
    store("set", "t", 0, np.repeat(one, 2, axis=0), np.array([2, 3]))
    assert store("pull", "t", 3, np.array([1, 2, 3])).tobytes() == dense.weight[1:].tobytes()


def test_a_step_that_is_skipped_is_no_update() -> None:
    key = standard(constant(table_of("t", (5, WIDTH), 1), 1.0))
    commit = CommitDescription(loss_scaling=LossScaling(2.0, 1000))
    description = msgspec.structs.replace(described(key, shards=2, rule="adam"), commit=commit)
    store, dense = Store(description), Dense(description, np.ones((5, WIDTH), np.float32))
    for step in range(6):
        ids, skipped = np.array([step % 3, 3]), step in {2, 3}
        rows = np.full((2, WIDTH), np.inf if skipped else 1.0, np.float32)
        scale = {0: 2.0, 1: 2.0, 2: 2.0, 3: 1.0}.get(step, 0.5)
        pushed = store.simulation.stores[0].push("t", step, rows * np.float32(scale), ids)
        outcome = store.simulation.stores[0].barrier(step, [])
        store.simulation.finish(store.choose, pushed, outcome)
        assert outcome.result(0).finite is not skipped
        if not skipped:
            dense.update(ids, rows)
    assert store("pull", "t", 6, np.arange(5)).tobytes() == dense.weight.tobytes()
    assert {one.rows.history._log.last for one in store.tables if one.rows.history is not None} == {4}


def test_in_async_each_push_is_an_update_that_passes_by_the_other_rows() -> None:
    key = standard(constant(table_of("t", (4, WIDTH), 2), 1.0))
    description = described(key, 2, rule="momentum", mode=Mode.ASYNC)
    store, dense = Store(description), Dense(description, np.ones((4, WIDTH), np.float32))
    one = np.ones((1, WIDTH), np.float32)
    for slot, step in ((0, 0), (0, 1), (1, 0), (0, 2), (1, 1)):
        store("push", "t", step, one, np.array([slot]), slot=slot)
        dense.update(np.array([slot]), one)
    store("set", "t", 0, 5 * one, np.array([3]))
    dense.weight[3] = 5
    assert store("pull", "t", 0, np.arange(4)).tobytes() == dense.weight.tobytes()


def test_a_growing_table_replays_from_when_a_row_came() -> None:
    growth = GrowthDescription(eviction=EvictionDescription(4, age=2))
    key = standard(msgspec.structs.replace(constant(table_of("t", (0, WIDTH), 1), 1.0), growth=growth))
    store = Store(described(key, shards=2, rule="momentum", hyper={"lr": 1.0, "momentum": 0.5, "weight_decay": 0.25}))
    rule, hyper = rules()["momentum"], {"lr": 1.0, "momentum": 0.5, "weight_decay": 0.25}
    rows: dict[int, tuple[Array, Array, int]] = {}
    high = 2**64 - 1
    for step, ids in enumerate([[high, 5], [5, 6], [], [9, high], [6], [6, 9], [6], [6, high]]):
        given = np.full((len(ids), WIDTH), 0.5, np.float32)
        store("push", "t", step, given, np.array(ids, np.uint64))
        for one in ids:
            weight, moved, _ = rows.get(one, (np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32), 0))
            rows[one] = weight, moved, step
        for one, (weight, moved, _) in rows.items():
            gradient = np.full(WIDTH, 0.5 if one in ids else 0.0, np.float32)
            rule.apply(weight, gradient, {"momentum": moved}, step + 1, hyper)
        if (step + 1) % 4 == 0:
            rows = {one: row for one, row in rows.items() if step + 1 - row[2] <= 2}
        asked = np.array([5, 6, 9, 77, high], np.uint64)
        wanted = np.array([rows[one][0] if one in rows else np.ones(WIDTH) for one in asked.tolist()], np.float32)
        assert store("pull", "t", step + 1, asked).tobytes() == wanted.tobytes(), step


def test_a_long_replay_is_made_in_pieces_and_a_pull_waits_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_arrays, "LEAST_BEHIND", rows_arrays.MOST_BEHIND)
    description = described(standard(constant(table_of("t", (600, 64), 1), 1.0)), rule="adam", slice_bytes=1 << 17)
    store = Store(description)
    ones = np.ones((600, 64), np.float32)
    store("push", "t", 0, ones, np.arange(600))
    dense = Dense(description, ones)
    dense.update(np.arange(600), ones)
    for step in range(1, 120):
        store("push", "t", step, ones[:1], np.array([0]))
        dense.update(np.array([0]), ones[:1])
    core = store.simulation.shards[0]
    pulled = store.simulation.stores[0].pull("t", 120, np.arange(600))
    pieces = 0
    while not pulled.done():
        pieces += int(bool(core.work.queue))
        assert store.simulation.step(store.choose)
        store.simulation._pump()
    assert pieces >= 2
    assert pulled.result(0).tobytes() == dense.weight.tobytes()
