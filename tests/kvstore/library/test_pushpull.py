"""`KVStore.pushpull`: one operation, one small message, and what holds of its gradients where it fails."""

from __future__ import annotations

import random
import signal
from typing import Any, cast

import msgspec
import numpy as np
import pytest

import weft_kvstore.shard.core
from face_stores import WAIT_S, Make
from store_cluster import pushpull_rows, served
from store_simulation import Simulation
from weft_kvstore import Key, KVStore, LinkSettings, ShardServer, StoreRefusedError, StoreTimeoutError, describe
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.wire.codec import decode_request
from weft_kvstore.wire.messages import Message, Pull, Push


def ones(count: int = 4) -> np.ndarray:
    return np.ones(count, np.float32)


@pytest.mark.parametrize(("elements", "messages"), [(64, [Push]), (1 << 15, [Pull, Push])])
def test_a_small_pushpull_is_one_message_and_a_large_frame_does_not_hold_its_pull_up(
    elements: int, messages: list[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Message] = []

    def decode(parts: Any) -> Any:
        message, payload, number = decode_request(parts)
        heard.append(message)
        return message, payload, number

    monkeypatch.setattr(weft_kvstore.shard.core, "decode_request", decode)
    with ShardServer("tcp://127.0.0.1:0") as server:
        key = Key(shape=(elements,), initializer=0.0)
        description = describe({"w": key}, shards=[server.endpoint], rule="sgd", lr=1.0)
        server.open(description, 0)
        with KVStore.connect(description, 0, settings=LinkSettings(same_host=False)) as store:
            for step in range(3):
                heard.clear()
                assert store.pushpull("w", ones(elements)).result(WAIT_S)[0] == -step - 1
                sent = [one for one in heard if isinstance(one, Push | Pull)]
            assert [type(one) for one in sent] == messages
            assert (sent[-1].pull is not None) == (len(messages) == 1)


@pytest.mark.parametrize("same_host", [False, True])
def test_a_pull_does_not_see_a_push_that_was_made_after_it(same_host: bool) -> None:
    """However many of both are under way and share messages."""
    with ShardServer("tcp://127.0.0.1:0") as server:
        key = Key(shape=(4,), initializer=0.0)
        description = describe({"w": key}, shards=[server.endpoint], rule="sgd", lr=1.0)
        server.open(description, 0)
        with KVStore.connect(description, 0, settings=LinkSettings(same_host=same_host)) as store:
            for step in range(20):
                pulls = [store.pull("w") for _ in range(8)]
                pushed = store.push("w", ones())
                assert [one.result(WAIT_S)[0] for one in pulls] == [-step] * 8
                pushed.result(WAIT_S)


def test_a_push_that_is_refused_is_no_newest_step() -> None:
    with ShardServer("tcp://127.0.0.1:0") as server:
        key = Key(shape=(4,), initializer=0.0)
        description = describe({"w": key}, shards=[server.endpoint], slots=2, rule="sgd", lr=1.0)
        server.open(description, 0)
        with KVStore.connect(description, 0, settings=LinkSettings(same_host=False)) as store:
            store.push("w", ones()).result(WAIT_S)
            with pytest.raises(StoreRefusedError):
                store.push("w", ones(), step=10**9).result(WAIT_S)
            assert server._stragglers.newest == 0


def test_gradients_that_arrived_count_where_the_values_come_too_late(make_alone: Make) -> None:
    one, other = make_alone(
        describe({"w": Key(shape=(4,), initializer=0.0)}, slots=2, rule="sgd", lr=1.0), timeout_s=0.5
    )
    for store in (one, other):
        store.pull("w").result(WAIT_S)
    with pytest.raises(StoreTimeoutError, match=r"pushpull of key 'w', step 0 .*slots? 1"):
        one.pushpull("w", ones()).result(WAIT_S)
    other.push("w", ones()).result(WAIT_S)
    assert one.pull("w").result(WAIT_S).tolist() == [-2.0] * 4
    assert one.steps("w") == 1


def test_gradients_that_were_refused_have_to_be_pushed_again(make: Make) -> None:
    one, other = make(describe({"w": Key(shape=(4,), initializer=0.0)}, slots=2, rule="sgd", lr=1.0))
    for store in (one, other):
        store.pull("w").result(WAIT_S)
    calls = [one.pushpull("w", ones()) for _ in range(4)]
    with pytest.raises(StoreRefusedError, match=r"step 3.* ahead of step 0"):
        calls[3].result(WAIT_S)
    with pytest.raises(StoreRefusedError, match="step 3 has to be pushed again, with step=3"):
        one.pushpull("w", ones())
    other.push("w", ones()).result(WAIT_S)
    again = one.pushpull("w", ones(), step=3)
    for _ in range(3):
        other.push("w", ones()).result(WAIT_S)
    assert again.result(WAIT_S).tolist() == [-8.0] * 4


def test_gradients_behind_a_push_that_may_have_failed_count_and_the_call_says_which_is_to_be_pushed_again(
    make: Make,
) -> None:
    one, other = make(describe({"w": Key(shape=(4,), initializer=0.0)}, slots=2, rule="sgd", lr=1.0))
    one.push("w", ones()).result(WAIT_S)
    one._store.failed["w"] = {0: StoreTimeoutError("no answer")}
    behind = one.pushpull("w", ones())
    with pytest.raises(StoreTimeoutError, match=r"'w', .*: step 0 has to be pushed again, with step=0; .*no answer"):
        behind.result(WAIT_S)
    for _ in range(2):
        other.push("w", ones()).result(WAIT_S)
    assert one.pushpull("w", ones(), step=0).result(WAIT_S).tolist() in ([-2.0] * 4, [-4.0] * 4)
    assert one.pull("w").result(WAIT_S).tolist() == [-4.0] * 4


def test_keys_at_several_steps_and_lists_give_what_a_push_and_a_pull_give(make: Make) -> None:
    keys = {name: Key(shape=(2,), initializer=0.0) for name in ("a", "b")}
    (store,) = make(describe(keys, rule="sgd", lr=1.0))
    store.push("a", ones(2)).result(WAIT_S)
    out = [np.empty(2, np.float32), np.empty(2, np.float32)]
    for step in range(3):
        found = store.pushpull(["a", "b"], [ones(2), ones(2)], out=out).result(WAIT_S)
        assert all(value is array for value, array in zip(found, out, strict=True))
        assert [value.tolist() for value in found] == [[-step - 2.0] * 2, [-step - 1.0] * 2]
    assert store.pushpull(("b",), (ones(2),)).result(WAIT_S)[0].tolist() == [-4.0, -4.0]


@pytest.mark.parametrize("call", ["push", "pushpull"])
def test_a_list_is_the_callers_again_at_once(make: Make, call: str) -> None:
    """The other slot's step is missing, so that calls wait for it, and those behind them are begun later."""
    keys = {name: Key(shape=(4,), initializer=0.0) for name in ("a", "b", "late")}
    one, other = make(describe(keys, slots=2, rule="sgd", lr=1.0))
    one.pull(["a", "b", "late"]).result(WAIT_S)
    waiting = [one.pull("late", version=1) for _ in range(8)]
    gradients, outs = [ones(), ones()], [np.empty(4, np.float32), np.empty(4, np.float32)]
    given = list(outs)
    called = one.push(["a", "b"], gradients) if call == "push" else one.pushpull(["a", "b"], gradients, out=given)
    gradients.clear()
    given.clear()
    other.push(["a", "b", "late"], [ones(), ones(), ones()])
    one.push("late", ones())
    called.result(WAIT_S)
    assert [value.tolist() for value in one.pull(["a", "b"]).result(WAIT_S)] == [[-2.0] * 4] * 2
    assert call == "push" or [value.tolist() for value in outs] == [[-2.0] * 4] * 2
    assert [pulled.result(WAIT_S).tolist() for pulled in waiting] == [[-2.0] * 4] * 8


@pytest.mark.parametrize("seed", range(8))
def test_every_call_has_its_own_version_and_counts_once_however_often_connections_break(seed: int) -> None:
    choose, slots, steps = random.Random(seed), 2, 6
    key = Key(shape=(64,), initializer=0.0)
    description = describe({"w": key}, slots=slots, shards=["tcp://127.0.0.1:1"], rule="sgd", lr=1.0, slice_bytes=64)
    simulation = Simulation(description, LinkSettings(credit_bytes=256, frame_bytes=128))
    keys = [store.key_list("w") for store in simulation.stores.values()]
    for step in range(steps):
        calls = [simulation.stores[slot].pushpull(keys[slot], step, [ones(64)]) for slot in range(slots)]
        for _ in range(60):
            simulation.step(choose)
            if choose.random() < 0.1:
                simulation.cut(choose.randrange(slots), 0)
                simulation.now += 0.2
        simulation.finish(choose, *calls)
        assert [call.result(0).tolist() for call in calls] == [[-2.0 * (step + 1)] * 64] * slots


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("call", ["push", "pushpull"])
def test_ctrl_c_in_the_middle_of_a_push_comes_once_its_step_is_sent_and_counted(
    call: str, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ShardServer("tcp://127.0.0.1:0") as server:
        description = describe({"w": Key((4,), initializer=0.0)}, shards=[server.endpoint], rule="sgd", lr=1.0)
        server.open(description, 0)
        with KVStore.connect(description, 0) as store:
            core = cast("StoreClient", store._store)._core
            begin = core.begin

            def interrupted(*given: Any) -> None:
                signal.raise_signal(signal.SIGINT)
                begin(*given)

            gradient: Any = ones() if plain else ones().tolist()
            store.push("w", gradient).result(WAIT_S)
            store.pull("w").result(WAIT_S)
            with monkeypatch.context() as patched:
                patched.setattr(core, "begin", interrupted)
                patched.setattr("weft_kvstore.client.poller.BATCH_S", -1.0)
                with pytest.raises(KeyboardInterrupt):
                    getattr(store, call)("w", gradient)
            assert store.steps("w") == 2
            store.push("w", gradient)
            assert store.pull("w").result(WAIT_S).tolist() == [-3.0] * 4


# --- Rows of tables ---------------------------------------------------------------------------------------------------


def table(rows: int = 40, **more: Any) -> Key:
    return Key(shape=(rows, 2), rows=True, initializer=0.0, **more)


def rows_of(*values: float) -> np.ndarray:
    return np.repeat(np.float32(values), 2).reshape(-1, 2)


def test_rows_that_are_pushed_are_pulled_as_the_step_leaves_them(make: Make) -> None:
    one, other = make(describe({"t": table()}, slots=2, rule="sgd", lr=1.0))
    found = one.pushpull_rows("t", [[7, 3, -1], [7, 30, 8]], rows_of(1, 2, 50, 4, 5, 6).reshape(2, 3, 2))
    theirs = other.pushpull_rows("t", np.int64([3]), rows_of(10))
    assert found.result(WAIT_S)[..., 0].tolist() == [[-5.0, -12.0, 0.0], [-5.0, -5.0, -6.0]]
    assert theirs.result(WAIT_S).tolist() == [[-12.0, -12.0]]
    assert (one.steps("t"), other.steps("t")) == (1, 1)


def test_other_rows_than_those_that_are_pushed_or_none_may_be_pulled(make: Make) -> None:
    (store,) = make(describe({"t": table()}, rule="sgd", lr=1.0))
    pulled = [
        store.pushpull_rows("t", [1, 2], rows_of(1, 1), [2, 9, 2, -1]),
        store.pushpull_rows("t", [1], rows_of(1), [4]),  # No row of the other shard, which gets an empty push.
        store.pushpull_rows("t", [1], rows_of(1), []),
        store.pushpull_rows("t", [], rows_of(), [1, 2]),
        store.pushpull_rows("t", [], rows_of()),
    ]
    found = [one.result(WAIT_S)[:, 0].tolist() for one in pulled]
    assert found == [[-1.0, 0.0, -1.0, 0.0], [0.0], [], [-3.0, -1.0], []]
    assert store.steps("t") == 5


def test_ids_whose_rows_are_pushed_and_pulled_travel_once() -> None:
    with ShardServer("tcp://127.0.0.1:0") as server:
        description = describe({"t": table(4000)}, shards=[server.endpoint], rule="sgd", lr=1.0)
        server.open(description, 0)
        with KVStore.connect(description, 0, settings=LinkSettings(same_host=False)) as store:
            store.pull_rows("t", [1]).result(WAIT_S)  # The first pull is one of its own.
            store.pushpull_rows("t", np.arange(1000), np.ones((1000, 2), np.float32)).result(WAIT_S)
            assert store.statistics().links[0].payload_bytes_sent == 8 + 1000 * (8 + 2 * 4)


def test_lists_of_tables_and_out_arrays_are_those_of_pull_rows(make: Make) -> None:
    keys = {
        "t": table(),
        "grown": Key(shape=(0, 2), rows=True, initializer=0.0, growth={}),
        "h": table(dtype="float16"),
    }
    (store,) = make(describe(keys, rule="sgd", lr=1.0))
    ids = [[5, 1], np.uint64([2**63 + 1]), [3]]
    halves = np.float16([[0.5, 0.5]])
    out = [np.empty((2, 2), np.float32), np.empty((1, 2), np.float32), np.empty((1, 2), np.float16)]
    for step in range(3):
        found = store.pushpull_rows([*keys], ids, [rows_of(1, 2), rows_of(3), halves], out=out).result(WAIT_S)
        assert all(value is array for value, array in zip(found, out, strict=True))
        assert [value[:, 0].tolist() for value in found] == [
            [-step - 1.0, -2.0 * (step + 1)],
            [-3.0 * (step + 1)],
            [-0.5 * (step + 1)],
        ]


@pytest.mark.parametrize("ids", [[1, 40], [[1]], [1.5, 2]])
def test_a_pushpull_of_rows_that_cannot_be_begins_no_step(make: Make, ids: list[Any]) -> None:
    (store,) = make(describe({"t": table(), "w": Key((4,), initializer=0.0)}, rule="sgd", lr=1.0))
    with pytest.raises(StoreRefusedError, match="pushpull_rows of key 't'"):
        store.pushpull_rows("t", ids, rows_of(1, 1))
    with pytest.raises(StoreRefusedError, match="pushpull_rows of key 't'"):
        store.pushpull_rows("t", [1], rows_of(1), ids[:1] if ids == [[1]] else ids, out=np.empty((3, 3), np.float32))
    with pytest.raises(StoreRefusedError, match=r"pushpull_rows of key 'w'.*no table"):
        store.pushpull_rows("w", [1], rows_of(1))
    with pytest.raises(StoreRefusedError, match="pushpull_rows"):
        store.pushpull("t", rows_of(1))
    assert store.steps("t") == 0


def test_in_async_mode_rows_have_at_least_their_own_steps(make: Make) -> None:
    one, other = make(describe({"t": table()}, slots=2, mode="async", rule="sgd", lr=1.0))
    for step in range(4):
        assert one.pushpull_rows("t", [6], rows_of(1)).result(WAIT_S)[0, 0] == -step - 1
    assert other.pushpull_rows("t", [6, 7], rows_of(1, 1)).result(WAIT_S)[:, 0].tolist() == [-5.0, -1.0]


def test_rows_that_were_refused_have_to_be_pushed_again(make: Make) -> None:
    one, other = make(describe({"t": table()}, slots=2, rule="sgd", lr=1.0))
    calls = [one.pushpull_rows("t", [1], rows_of(1)) for _ in range(4)]
    with pytest.raises(StoreRefusedError, match=r"step 3.* ahead of step 0"):
        calls[3].result(WAIT_S)
    with pytest.raises(StoreRefusedError, match="step 3 has to be pushed again, with step=3"):
        one.pushpull_rows("t", [1], rows_of(1))
    other.push_rows("t", [1], rows_of(1)).result(WAIT_S)
    again = one.pushpull_rows("t", [1], rows_of(1), step=3)
    for _ in range(3):
        other.push_rows("t", [1], rows_of(1)).result(WAIT_S)
    assert again.result(WAIT_S).tolist() == [[-8.0, -8.0]]


def test_rows_that_arrived_count_where_those_that_are_pulled_come_too_late(make_alone: Make) -> None:
    one, other = make_alone(describe({"t": table()}, slots=2, rule="sgd", lr=1.0), timeout_s=0.5)
    one.pull_rows("t", [1]).result(WAIT_S)
    with pytest.raises(StoreTimeoutError, match=r"pushpull of rows of key 't', step 0 .*slots? 1"):
        one.pushpull_rows("t", [1], rows_of(1)).result(WAIT_S)
    other.push_rows("t", [1], rows_of(1)).result(WAIT_S)
    assert one.pull_rows("t", [1]).result(WAIT_S).tolist() == [[-2.0, -2.0]]
    assert one.steps("t") == 1


@pytest.mark.parametrize("pull_others", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_rows_have_their_version_and_count_once_however_often_connections_break(seed: int, pull_others: bool) -> None:
    """Of pushes in several frames, over two shards."""
    choose, slots, steps = random.Random(seed), 2, 6
    endpoints = ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]
    description = describe({"t": table(100)}, slots=slots, shards=endpoints, rule="sgd", lr=1.0, slice_bytes=64)
    simulation = Simulation(description, LinkSettings(credit_bytes=256, frame_bytes=128))
    expected = np.zeros((100, 2), np.float32)
    for step in range(steps):
        calls, wanted = [], []
        for slot, store in simulation.stores.items():
            ids = np.int64(choose.sample(range(100), choose.choice([1, 5, 60])))
            pulled = np.int64(choose.sample(range(100), 30)) if pull_others else ids
            expected[ids] -= slot + 1
            rows = np.full((len(ids), 2), slot + 1, np.float32)
            calls.append(pushpull_rows(store, step, rows, ids, pulled if pull_others else None))
            wanted.append(pulled)
        for _ in range(80):
            simulation.step(choose)
            if choose.random() < 0.1:
                simulation.cut(choose.randrange(slots), choose.randrange(2))
                simulation.now += 0.2
        simulation.finish(choose, *calls)
        for call, ids in zip(calls, wanted, strict=True):
            np.testing.assert_array_equal(call.result(0), expected[ids])
    assert all(not link.requests for client in simulation.clients.values() for link in client.links)


def test_a_pushpull_of_rows_is_one_message_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Message] = []

    def decode(parts: Any) -> Any:
        message, payload, number = decode_request(parts)
        heard.append(message)
        return message, payload, number

    monkeypatch.setattr(weft_kvstore.shard.core, "decode_request", decode)
    with ShardServer("tcp://127.0.0.1:0") as server:
        key = Key(shape=(20_000, 64), rows=True, initializer=0.0)
        description = describe({"t": key}, shards=[server.endpoint], rule="sgd", lr=1.0)
        server.open(description, 0)
        with KVStore.connect(description, 0, settings=LinkSettings(same_host=False)) as store:
            store.pull_rows("t", [1]).result(WAIT_S)
            for step in range(3):
                heard.clear()
                found = store.pushpull_rows("t", np.arange(0, 4000, 2), np.ones((2000, 64), np.float32))
                assert found.result(WAIT_S)[-1, 0] == -step - 1
                (push,) = [one for one in heard if isinstance(one, Push | Pull)]
                assert isinstance(push, Push)
                assert push.pull is not None


def test_rows_of_a_step_that_is_committed_are_pulled_once_it_is(make: Make) -> None:
    one, other = make(
        describe(
            {"t": table(), "w": Key((4,), initializer=0.0)}, slots=2, rule="sgd", lr=1.0, commit={"clip_norm": 1e9}
        )
    )
    for step in range(3):
        pulled = [store.pushpull_rows("t", [5], rows_of(1)) for store in (one, other)]
        ended = [store.end_step() for store in (one, other)]
        assert [rows.result(WAIT_S).tolist() for rows in pulled] == [[[-2.0 * (step + 1)] * 2]] * 2
        assert all(end.result(WAIT_S).finite for end in ended)


def test_a_process_that_takes_a_slot_over_pushes_the_same_rows_once_more_and_they_count_once() -> None:
    """Rows that are in already, and ids of which the shard knows nothing."""
    with ShardServer("tcp://127.0.0.1:0") as server:
        description = describe({"t": table(100)}, shards=[server.endpoint], rule="sgd", lr=1.0, slice_bytes=64)
        server.open(description, 0)
        ids, rows = np.arange(0, 100, 3), np.ones((34, 2), np.float32)
        with KVStore.connect(description, 0) as first:
            first.pushpull_rows("t", ids, rows).result(WAIT_S)
        with KVStore.connect(description, 0, incarnation=2) as second:
            again = second.pushpull_rows("t", ids, rows, step=0)
            assert again.result(WAIT_S).tolist() == [[-1.0, -1.0]] * 34
            assert second.pushpull_rows("t", [3], rows_of(1)).result(WAIT_S).tolist() == [[-2.0, -2.0]]


def test_ids_that_are_pushed_and_pulled_alike_travel_once() -> None:
    description = describe({"t": Key(shape=(40, 2), rows=True, initializer=0.0)}, rule="sgd", lr=1.0)
    ids, rows = np.arange(40), np.ones((40, 2), np.float32)
    link = LinkSettings(same_host=False)
    with (
        served(msgspec.structs.replace(description, shards=("",))) as (found, _),
        KVStore.connect(found, 0, settings=link) as store,
    ):
        sent = [0]
        for pull_ids in (None, ids):
            store.pushpull_rows("t", ids, rows, pull_ids).result(WAIT_S)
            sent.append(store.statistics().links[0].payload_bytes_sent)
        assert sent[2] - sent[1] == sent[1]
