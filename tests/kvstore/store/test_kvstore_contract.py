"""What every store promises: one suite over the networked store and the local one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest

from store_cluster import WAIT_S, ByName, NamedStore, constant, key_of, store_of, stores_of
from weft_kvstore.description.records import KeyDescription, Merge, StoreDescription
from weft_kvstore.errors import StoreError, StoreRefusedError, StoreTimeoutError
from weft_kvstore.futures import on_end
from weft_kvstore.same_host.memory import SharedMemory
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.core import ShardCore

DEFAULTS = LinkSettings()

Make = Callable[..., Sequence[ByName]]
"""make(description, settings): a store for each slot."""


@pytest.fixture(params=["network", "shared", "local"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    if request.param == "shared":  # Small payloads too.
        monkeypatch.setattr(SharedMemory, "least_bytes", 1)
    with ExitStack() as stack:

        def make(description: StoreDescription, settings: LinkSettings = DEFAULTS) -> Sequence[ByName]:
            return stack.enter_context(stores_of(request.param, description, settings))

        yield make


def simple(
    *keys: KeyDescription, slots: int = 1, shards: int = 2, rule: str = "sgd", merge: Merge = Merge.SLOT
) -> StoreDescription:
    return store_of(keys, slots=slots, shards=shards, rule=rule, hyper={"lr": 0.5}, slice_bytes=256, merge=merge)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_version_0_is_the_first_value(make: Make) -> None:
    key = constant(key_of("w", (10, 30), 1), 0.25)
    (store,) = make(simple(key))
    value = store.pull("w", 0).result(WAIT_S)
    assert (value.dtype, value.shape) == (np.float32, (10, 30))
    assert np.all(value == 0.25)


def test_a_pull_gives_a_new_array_that_the_caller_may_write(make: Make) -> None:
    (store,) = make(simple(constant(key_of("w", (300,), 1), 1.0)))
    first = store.pull("w", 0).result(WAIT_S)
    first[:] = 7.0
    assert np.all(store.pull("w", 0).result(WAIT_S) == 1.0)


def test_a_step_applies_when_every_slot_has_pushed(make: Make) -> None:
    stores = make(simple(constant(key_of("w", (300,), 3), 1.0), slots=3))
    values = [store.pull("w", 1) for store in stores]
    for number in (2, 0):
        stores[number].push("w", 0, ones(300) * (number + 1)).result(WAIT_S)
    assert not any(value.done() for value in values)
    stores[1].push("w", 0, ones(300) * 2).result(WAIT_S)
    for value in values:
        assert np.all(value.result(WAIT_S) == 1.0 - 0.5 * 6)


def test_the_pushed_array_is_not_changed_and_may_be_written_once_the_future_has_ended(make: Make) -> None:
    stores = make(simple(constant(key_of("w", (300,), 2), 0.0), slots=2))
    gradient = ones(300)
    stores[1].push("w", 0, gradient).result(WAIT_S)
    assert np.all(gradient == 1.0)
    gradient[:] = 100.0
    stores[0].push("w", 0, ones(300)).result(WAIT_S)
    assert np.all(stores[0].pull("w", 1).result(WAIT_S) == -1.0)


def test_who_declares_nothing_is_not_waited_for(make: Make) -> None:
    stores = make(simple(constant(key_of("w", (300,), 2), 0.0), constant(key_of("b", (), 2), 0.0), slots=2))
    stores[0].push("w", 0, ones(300)).result(WAIT_S)
    stores[0].barrier(0, ["b"]).result(WAIT_S)
    stores[1].barrier(0, ["w", "b"]).result(WAIT_S)
    assert np.all(stores[1].pull("w", 1).result(WAIT_S) == -0.5)
    assert stores[1].pull("b", 1).result(WAIT_S) == 0.0


def test_a_step_without_a_contributor_moves_the_version_and_is_no_update(make: Make) -> None:
    """Adam's first update is of the size of the rate only if it is counted as the first."""
    (store,) = make(simple(constant(key_of("w", (4,), 1), 0.0), rule="adam"))
    store.barrier(0, ["w"]).result(WAIT_S)
    assert np.all(store.pull("w", 1).result(WAIT_S) == 0.0)
    store.push("w", 1, ones(4)).result(WAIT_S)
    assert np.allclose(store.pull("w", 2).result(WAIT_S), -0.5)


def test_values_without_elements_and_scalars_are_values(make: Make) -> None:
    (store,) = make(simple(key_of("empty", (0, 3), 1), constant(key_of("scalar", (), 1), 2.0)))
    assert store.pull("empty", 5).result(WAIT_S).shape == (0, 3)
    store.push("empty", 0, np.ones((0, 3), np.float32)).result(WAIT_S)
    store.push("scalar", 0, ones()).result(WAIT_S)
    assert store.pull("scalar", 1).result(WAIT_S).shape == ()
    assert store.pull("scalar", 1).result(WAIT_S) == 1.5


def test_a_key_to_which_nobody_contributes_has_every_version(make: Make) -> None:
    (store,) = make(simple(constant(msgspec.structs.replace(key_of("w", (300,), 1), slots=()), 3.0)))
    assert np.all(store.pull("w", 9).result(WAIT_S) == 3.0)


def test_a_slot_may_push_two_steps_ahead_and_no_further(make: Make) -> None:
    stores = make(simple(key_of("w", (300,), 2), slots=2))
    for step in range(3):
        stores[1].push("w", step, ones(300)).result(WAIT_S)
    with pytest.raises(StoreRefusedError, match=r"slot 1, key 'w', slice \d, step 3: .*waits for slots 0"):
        stores[1].push("w", 3, ones(300)).result(WAIT_S)
    stores[0].push("w", 0, ones(300)).result(WAIT_S)
    stores[1].push("w", 3, ones(300)).result(WAIT_S)


def test_a_barrier_for_a_key_that_the_slot_does_not_push_is_refused(make: Make) -> None:
    other = msgspec.structs.replace(key_of("other", (2,), 2), slots=(0,))
    _, store = make(simple(key_of("w", (2, 3), 2), other, slots=2))
    with pytest.raises(StoreRefusedError, match=r"key 'other'.*: only slots \[0\]"):
        store.barrier(0, ["other"]).result(WAIT_S)


def test_a_pull_ends_at_its_deadline_and_says_who_is_missing() -> None:
    """In one process, where the shard's answer is there in time on a busy machine too."""
    with stores_of("local", simple(key_of("w", (300,), 3), slots=3), LinkSettings(request_timeout_s=0.5)) as stores:
        stores[1].push("w", 0, ones(300)).result(WAIT_S)
        with pytest.raises(StoreTimeoutError, match=r"key 'w', version 1 .*step 0 waits for slots 0, 2"):
            stores[1].pull("w", 1).result(WAIT_S)


def test_a_callback_may_begin_the_next_operation(make: Make) -> None:
    (store,) = make(simple(constant(key_of("w", (300,), 1), 0.0)))
    done = threading.Event()
    values: list[np.ndarray] = []

    def pulled(future: object) -> None:
        values.append(future.result())  # type: ignore[attr-defined]  # a future
        done.set()

    pushed = store.push("w", 0, ones(300))
    pushed.add_done_callback(lambda _: store.pull("w", 1).add_done_callback(pulled))
    assert done.wait(WAIT_S)
    assert np.all(values[0] == -0.5)


def test_closing_fails_what_is_open_and_what_comes_after(make: Make) -> None:
    store = make(simple(key_of("w", (300,), 1)))[0]
    waiting = store.pull("w", 1)
    store.close()
    store.close()
    with pytest.raises(StoreError, match=r"slot 0: .*key 'w', version 1: the store was closed"):
        waiting.result(WAIT_S)
    with pytest.raises(StoreError, match="closed"):
        store.pull("w", 0).result(WAIT_S)


def test_gradients_that_overflow_are_the_users_to_see(make: Make) -> None:
    (store,) = make(simple(constant(key_of("w", (300,), 1), 1.0), rule="adam"))
    store.push("w", 0, np.full(300, np.inf, np.float32)).result(WAIT_S)
    assert np.all(np.isnan(store.pull("w", 1).result(WAIT_S)))


def test_a_callback_may_wait(make: Make) -> None:
    (store,) = make(simple(constant(key_of("w", (4,), 1), 0.0)))
    found: Future[Any] = Future()
    pushed = store.push("w", 0, np.ones(4, np.float32))
    pushed.add_done_callback(lambda _: found.set_result(store.pull("w", 0).result(WAIT_S)))
    assert found.result(WAIT_S).shape == (4,)


def test_the_thread_of_a_local_store_cannot_wait() -> None:
    told: Future[str] = Future()
    with NamedStore(simple(constant(key_of("w", (4,), 1), 0.0), slots=1)) as store:

        def wait(_: object) -> None:
            try:
                store.pull("w", 0).result(WAIT_S)
            except StoreError as error:
                told.set_result(str(error))

        on_end(store.pull("w", 1), wait)
        store.push("w", 0, ones(4)).result(WAIT_S)
        assert "on which nobody can wait for a result" in told.result(WAIT_S)


def test_a_local_store_whose_shard_fails_ends_for_all_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    description = simple(constant(key_of("w", (4,), 2), 0.0), slots=2)
    with NamedStore(description) as store:
        other = store.at_slot(1)
        other.push("w", 0, ones(4)).result(WAIT_S)
        waiting = other.pull("w", 1)
        monkeypatch.setattr(ShardCore, "flush", Mock(side_effect=ValueError("no")))
        with pytest.raises(StoreError, match="thread failed: ValueError: no"):
            store.pull("w", 0).result(WAIT_S)
        with pytest.raises(StoreError, match="thread failed: ValueError: no"):
            waiting.result(WAIT_S)


def test_slots_of_a_local_store_take_no_descriptors() -> None:
    with NamedStore(simple(constant(key_of("w", (4,), 1), 0.0), slots=40)) as store:
        store.pull("w", 0).result(WAIT_S)
        before = len(os.listdir("/proc/self/fd"))
        for slot in range(1, 40):
            store.at_slot(slot).pull("w", 0).result(WAIT_S)
        assert len(os.listdir("/proc/self/fd")) <= before


def test_callbacks_of_two_slots_may_both_close_a_local_store() -> None:
    with NamedStore(simple(constant(key_of("w", (4,), 2), 0.0), slots=2)) as store:
        closed = [Future[None](), Future[None]()]

        def close(which: Future[None]) -> None:
            store.close()
            which.set_result(None)

        for slot, which in enumerate(closed):
            store.at_slot(slot).pull("w", 0).add_done_callback(lambda _, which=which: close(which))
        for which in closed:
            which.result(WAIT_S)


def test_the_thread_of_a_local_store_does_all_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's handler that raises in a caller leaves it whole, and a call returns at once."""
    threads: set[str] = set()
    for name in ("receive", "flush"):
        work = getattr(ShardCore, name)
        monkeypatch.setattr(
            ShardCore,
            name,
            lambda *given, work=work: (threads.add(threading.current_thread().name), work(*given))[1],
        )
    with NamedStore(simple(constant(key_of("w", (4,), 1), 0.0))) as store:
        for call in (store.push("w", 0, ones(4)), store.pull("w", 1)):
            call.result(WAIT_S)
    assert threads == {"weft-local-store"}
