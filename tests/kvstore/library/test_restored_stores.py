"""A program goes on from its own checkpoint, values and the rule's state, with the bits of a run that never stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import served
from weft_kvstore import Key, KVStore, StoreDescription, StoreRefusedError, StoreTimeoutError, describe
from weft_kvstore.client.operation import RowOperation
from weft_kvstore.wire.messages import PayloadKind

WAIT_S = 60.0
SLOTS, BEFORE, AFTER = 3, 4, 3
KINDS = ["network", "local"]
Array = np.ndarray[Any, np.dtype[Any]]
DROPPING = {"schedule": "linear", "start": 0.5, "end": 0.0, "steps": 20}


def stores_of(**more: Any) -> StoreDescription:
    keys = {
        "cut": Key(shape=(1000,), initializer={"uniform": [-1, 1]}),
        "given": Key(shape=(7,)),
        "half": Key(shape=(300,), dtype="bfloat16", initializer=1.0),
    }
    return describe(keys, slots=SLOTS, slice_bytes=512, **{"rule": "adam", "lr": DROPPING, **more})


@contextmanager
def slots_at(kind: str, description: StoreDescription, step: int) -> Iterator[Sequence[KVStore]]:
    with ExitStack() as stack:
        if kind == "local":
            first = stack.enter_context(KVStore.local(description, step=step))
            yield [first, *(first.at_slot(slot, step=step) for slot in range(1, description.slots))]
            return
        found, _ = stack.enter_context(served(msgspec.structs.replace(description, shards=("", ""))))
        yield [stack.enter_context(KVStore.connect(found, slot, step=step)) for slot in range(description.slots)]


def train(stores: Sequence[KVStore], steps: range) -> list[Array]:
    names = list(stores[0].keys)
    found: list[Array] = []
    for step in steps:
        futures = []
        for slot, store in enumerate(stores):
            draw = np.random.Generator(np.random.Philox(key=step * SLOTS + slot))
            gradients = [draw.normal(size=n).astype(np.float32) for n in (1000, 7, 300)]
            futures.append(store.pushpull(names, [*gradients[:2], gradients[2].astype("bfloat16")]))
        results = [future.result(WAIT_S) for future in futures]
        found = results[0]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_store_goes_on_bit_for_bit(kind: str) -> None:
    """Adam counts its updates and the schedule its steps, so neither may begin at 0."""
    description = stores_of()
    with slots_at(kind, description, 0) as stores:
        stores[0].init("given", np.arange(7, dtype=np.float32)).result(WAIT_S)
        train(stores, range(BEFORE))
        names = list(stores[0].keys)
        values = stores[0].pull(names).result(WAIT_S)
        state = stores[0].pull_state(names).result(WAIT_S)
        expected = train(stores, range(BEFORE, BEFORE + AFTER))
        last = stores[0].pull_state(names).result(WAIT_S)
    with slots_at(kind, description, BEFORE) as stores:
        pulls = [store.pull(names) for store in stores]  # Before it is restored, and they wait for it.
        step: Any = np.int64(BEFORE)
        stores[1].restore(names, values, state, step=step).result(WAIT_S)
        for pull in pulls:
            assert [a.tobytes() for a in pull.result(WAIT_S)] == [a.tobytes() for a in values]
        assert [a.tobytes() for a in train(stores, range(BEFORE, BEFORE + AFTER))] == [a.tobytes() for a in expected]
        again = stores[0].pull_state(names).result(WAIT_S)
        assert [{n: a.tobytes() for n, a in one.items()} for one in again] == [
            {n: a.tobytes() for n, a in one.items()} for one in last
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_without_its_state_a_rule_begins_anew_at_the_step(kind: str) -> None:
    description = describe({"w": (2,)}, rule="momentum", lr=1.0, slots=SLOTS)
    with slots_at(kind, description, 9) as stores:
        stores[0].restore("w", [5, 6], step=9).result(WAIT_S)
        assert stores[0].pull_state("w").result(WAIT_S)["momentum"].tolist() == [0, 0]
        for future in [store.pushpull("w", [1, 1]) for store in stores]:
            assert future.result(WAIT_S).tolist() == [2, 3]
        assert stores[0].steps("w") == 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["async", "stale"])
def test_in_async_and_stale_mode_each_goes_on_from_the_step(kind: str, mode: str) -> None:
    description = describe({"w": (2,)}, rule="sgd", lr=1.0, slots=SLOTS, mode=mode)
    with slots_at(kind, description, 5) as stores:
        stores[0].restore("w", [10, 10], {}, step=5).result(WAIT_S)
        for store in stores:
            store.push("w", [1, 1]).result(WAIT_S)
        assert stores[0].pull("w", settled=True).result(WAIT_S).tolist() == [7, 7]


def test_in_async_and_stale_mode_adam_has_counted_the_updates_of_all() -> None:
    """In one order, as each call is waited for."""
    keys = {"w": Key((2,), initializer=0.5), "t": Key((2, 2), rows=True, initializer=0.5)}
    description = describe(keys, rule="adam", lr=0.1, slots=2, mode="async")

    def train(stores: Sequence[KVStore], steps: range) -> list[bytes]:
        for step in steps:
            for slot, store in enumerate(stores):
                gradient = np.array([step - 1, slot + 1], np.float32)
                store.push("w", gradient).result(WAIT_S)
                store.push_rows("t", [0, 1], [gradient, -gradient]).result(WAIT_S)
        return [pull.result(WAIT_S).tobytes() for pull in (stores[0].pull("w"), stores[0].pull_rows("t", [0, 1]))]

    with slots_at("local", description, 0) as stores:
        train(stores, range(3))
        saved = stores[0].pull("w").result(WAIT_S), stores[0].pull_state("w").result(WAIT_S)
        rows = [stores[0].pull_rows("t", [0, 1]), stores[0].pull_state_rows("t", [0, 1])]
        of_table = [one.result(WAIT_S) for one in rows]
        expected = train(stores, range(3, 5))
    with slots_at("local", description, 3) as stores:
        stores[0].restore_rows("t", [0, 1], *of_table, step=3).result(WAIT_S)
        stores[0].restore("w", *saved, step=3).result(WAIT_S)
        assert train(stores, range(3, 5)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_what_somebody_has_pushed_is_not_restored(kind: str) -> None:
    description = describe({"w": Key((2,), initializer=0.0)}, rule="sgd", lr=1.0, slots=SLOTS)
    with slots_at(kind, description, 0) as stores:
        stores[1].push("w", [1, 1]).result(WAIT_S)
        restored = stores[0].restore("w", [5, 5], step=0)
        with pytest.raises(StoreRefusedError, match="restore before anybody pushes"):
            restored.result(WAIT_S)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"mean": np.zeros(2, np.float32)}, "state: the rule keeps mean, variance, not mean$"),
        (
            {name: np.zeros(2, np.float32) for name in ("speed", "mean", "variance")},
            "state: the rule keeps mean, variance, not speed, mean, variance$",
        ),
        ({}, "state: the rule keeps mean, variance, not nothing$"),
        ([np.zeros(2, np.float32)], "state: a dictionary of arrays by name, not a list"),
        ({"mean": np.zeros(2), "variance": np.zeros(2)}, "state 'mean': it is float64"),
    ],
)
def test_a_state_that_is_not_the_rules_is_refused(state: Any, told: str) -> None:
    described = describe({"w": (2,)}, rule="adam")
    with KVStore.local(described, step=3) as store, pytest.raises(StoreRefusedError, match=told):
        store.restore("w", [1, 1], state, step=3)


def test_a_push_before_the_store_is_restored_says_what_is_missing() -> None:
    with KVStore.local(describe({"w": Key((2,), initializer=0.0)}, rule="sgd"), step=5) as store:
        told = r"more than 2 steps ahead .*connected with step=5: .* until one slot calls restore\(\.\.\., step=5\)"
        with pytest.raises(StoreRefusedError, match=told):
            store.push("w", [1, 1]).result(WAIT_S)


def test_a_pull_that_nobody_has_restored_for_says_what_is_missing() -> None:
    with KVStore.local(describe({"w": Key((2,), initializer=0.0)}, rule="sgd"), step=3, timeout_s=0.2) as store:
        told = r"version 3 took over .*connected with step=3: .* until one slot calls restore\(\.\.\., step=3\)"
        with pytest.raises(StoreTimeoutError, match=told):
            store.pull("w").result(WAIT_S)


def test_values_are_restored_to_the_step_at_which_the_slot_begins() -> None:
    described = describe({"w": (2,), "t": Key((4, 2), rows=True)}, rule="sgd")
    with KVStore.local(described, step=3) as store:
        for call in (
            lambda: store.restore("w", [1, 1], step=5),
            lambda: store.restore_rows("t", [1], [[1, 1]], step=5),
        ):
            with pytest.raises(StoreRefusedError, match="step: 5; this store was connected with step=3"):
                call()


TABLES = {
    "lazy": Key((40, 3), rows=True, initializer={"uniform": [-1, 1]}),
    "standard": Key((40, 3), rows=True, initializer={"uniform": [-1, 1]}, sparse="standard"),
    "growing": Key((0, 3), rows=True, initializer=1.0, growth={}),
    "half": Key((40, 3), rows=True, initializer={"uniform": [-1, 1]}, dtype="bfloat16"),
}


def train_rows(stores: Sequence[KVStore], name: str, steps: range) -> Array:
    pulled = []
    for step in steps:
        pushes = []
        for slot, store in enumerate(stores):
            draw = np.random.Generator(np.random.Philox(key=step * SLOTS + slot))
            ids, rows = draw.integers(0, 40, 6), draw.normal(size=(6, 3)).astype(TABLES[name].dtype)
            pushes.append(store.push_rows(name, ids, rows))
        pulled = [store.pull_rows(name, np.arange(40)) for store in stores]
        for push in pushes:
            push.result(WAIT_S)
    return pulled[0].result(WAIT_S)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TABLES)
def test_a_restored_table_goes_on_bit_for_bit(kind: str, name: str) -> None:
    """Its rows are restored by two calls, and a pull of the step waits until it is restored."""
    description = describe({name: TABLES[name]}, slots=SLOTS, slice_bytes=64, rule="adam", lr=DROPPING)
    ids = np.arange(40)
    with slots_at(kind, description, 0) as stores:
        values = train_rows(stores, name, range(BEFORE))
        state = stores[0].pull_state_rows(name, ids).result(WAIT_S)
        expected = train_rows(stores, name, range(BEFORE, BEFORE + AFTER))
        last = stores[0].pull_state_rows(name, ids).result(WAIT_S)
    with slots_at(kind, description, BEFORE) as stores:
        pull = stores[0].pull_rows(name, ids[:0])
        for some in (ids[:25], ids[25:]):
            part = {array: rows[some] for array, rows in state.items()}
            before = stores[1].statistics().rows_pushed
            stores[1].restore_rows(name, some, values[some], part, step=BEFORE).result(WAIT_S)
            assert stores[1].statistics().rows_pushed == before + len(values[some])
        assert pull.result(WAIT_S).shape == (0, 3)
        assert stores[2].pull_rows(name, ids).result(WAIT_S).tobytes() == values.tobytes()
        assert train_rows(stores, name, range(BEFORE, BEFORE + AFTER)).tobytes() == expected.tobytes()
        again = stores[0].pull_state_rows(name, ids).result(WAIT_S)
        assert {array: rows.tobytes() for array, rows in again.items()} == {
            array: rows.tobytes() for array, rows in last.items()
        }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_rows_that_are_not_restored_begin_anew_and_so_does_the_rule_without_its_state(kind: str, mode: str) -> None:
    key = Key((40, 2), rows=True, initializer=3.0)
    with slots_at(kind, describe({"t": key}, rule="momentum", lr=1.0, slots=SLOTS, mode=mode), 20) as stores:
        stores[0].restore_rows("t", [4, 1], [[5, 5], [6, 6]], step=20).result(WAIT_S)
        for push in [store.push_rows("t", [1], [[1, 1]]) for store in stores]:
            push.result(WAIT_S)
        rows = stores[0].pull_rows("t", [0, 1, 4], settled=True).result(WAIT_S)
        assert rows[[0, 2]].tolist() == [[3, 3], [5, 5]]
        assert mode == "async" or rows[1].tolist() == [3, 3]
        assert (stores[0].steps("t"), stores[0].rule) == (21, "momentum")


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_somebody_has_pushed_is_not_restored(kind: str) -> None:
    key = Key((4, 2), rows=True, initializer=0.0)
    with slots_at(kind, describe({"t": key}, rule="sgd", lr=1.0, slots=SLOTS), 0) as stores:
        stores[1].push_rows("t", [1], [[1, 1]]).result(WAIT_S)
        with pytest.raises(StoreRefusedError, match="key 't', step 0: it cannot be restored: a step"):
            stores[0].restore_rows("t", [1], [[5, 5]], step=0).result(WAIT_S)


def test_what_does_not_fit_a_table_is_not_restored() -> None:
    description = describe({"t": Key((2, 2), rows=True, initializer=0), "w": Key((2,), initializer=0)}, rule="adam")
    rows, state = np.zeros((1, 2), np.float32), {"mean": np.zeros((1, 2), np.float32)}
    with KVStore.local(description, step=3) as store:
        for call, told in (
            (lambda: store.restore("t", np.zeros((2, 2), np.float32), step=3), "say which rows, with restore_rows"),
            (lambda: store.restore_rows("w", [0], rows, step=3), "it is no table: call restore"),
            (
                lambda: store.restore_rows("t", [0], rows, state, step=3),
                "state: the rule keeps mean, variance, not mean$",
            ),
            (lambda: store.restore_rows("t", [0], rows, step=-3), "restore_rows: step: a number from 0"),
            (
                lambda: store.restore_rows("t", [2], rows, step=3),
                "restore_rows of key 't': .*id 2: the table has rows 0 to 1",
            ),
        ):
            with pytest.raises(StoreRefusedError, match=told):
                call()
        table, ids = store._registry.key_list("t", "restore_rows", rows=True), (np.zeros(1, np.int64), 1)

        def sent(step: int, kind: PayloadKind) -> Future[None]:
            return store._store.submit(RowOperation(table, payload_kind=kind, step=step, arrays=rows, ids=ids))

        with pytest.raises(StoreRefusedError, match="there is state of rows whose values were not restored"):
            sent(1, PayloadKind.RESTORED_STATE).result(WAIT_S)
        sent(1 << 59, PayloadKind.RESTORED).result(WAIT_S)
        with pytest.raises(StoreRefusedError, match="at version 3: it is restored at version 576460752303423488"):
            store.restore_rows("t", [0], rows, step=3).result(WAIT_S)
        for step, told in ((3, "the rule has 2 state arrays, not 3"), (0, "not 0")):
            with pytest.raises(StoreRefusedError, match=told):
                sent(step, PayloadKind.RESTORED_STATE).result(WAIT_S)


def test_a_table_of_committed_steps_is_not_restored() -> None:
    description = describe({"t": Key((2, 2), rows=True, initializer=0)}, rule="sgd", commit={"clip_norm": 1.0})
    with (
        KVStore.local(description, step=3) as store,
        pytest.raises(StoreRefusedError, match="with commit cannot be restored"),
    ):
        store.restore_rows("t", [0], np.zeros((1, 2), np.float32), step=3).result(WAIT_S)


def test_committed_steps_are_not_restored() -> None:
    description = describe({"w": (2,)}, rule="sgd", commit={"clip_norm": 1.0})
    with (
        KVStore.local(description, step=3) as store,
        pytest.raises(StoreRefusedError, match="with commit cannot be restored"),
    ):
        store.restore("w", [1, 1], step=3).result(WAIT_S)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_versions_and_priorities_may_be_numpys(kind: str) -> None:
    """Also such as have no successor in their type: they come from checkpoints."""
    keys = {"w": Key(shape=(2,), initializer=0.0), "t": Key(shape=(4, 2), rows=True, initializer=0.0)}
    last: Any = np.uint8(255)
    after: Any = np.uint16(256)
    first: Any = np.int64(1)
    ones = np.ones((1, 2), np.float32)
    with slots_at(kind, describe(keys, rule="sgd", lr=1.0), last) as (store,):
        store.restore_rows("t", [0], 5 * ones, step=last).result(WAIT_S)
        store.restore(["w"], [5 * ones[0]], step=last).result(WAIT_S)
        found = [
            store.pushpull("w", ones[0], step=last, priority=first),
            store.pushpull_rows("t", [0], ones, step=last, priority=first),
            store.end_step(last),
            store.set_hyper("lr", first, step=after),
            store.set("w", ones[0], version=after + 1),
            store.set_rows("t", [0], ones, version=after + 1),
            store.push("w", ones[0], step=after, priority=first),
            store.push_rows("t", [0], ones, step=after, priority=first),
            store.pull("w", version=after, priority=first),
            store.pull_rows("t", [0], version=after + 1, priority=first),
            store.pull_state("w", version=after),
        ]
        values = [one.result(WAIT_S) for one in found]
        assert (values[0].tolist(), values[1].tolist(), values[9].tolist()) == ([4.0, 4.0], [[4.0, 4.0]], [[1.0, 1.0]])
        assert (values[3], store.hyper("w", step=after)["lr"], store.steps("w")) == (256, 1.0, 257)
