"""`KVStore` after something was refused: what counts, what is to be done, and who is told; over shards and locally."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from face_stores import WAIT_S, Make, faces, ones, push, steps_of, zero
from weft_kvstore import (
    Key,
    KVStore,
    StoreError,
    StoreLostError,
    StoreRefusedError,
    StoreTimeoutError,
    describe,
)
from weft_kvstore.client.operation import KeyOperation, Operation
from weft_kvstore.client.store_client import Store
from weft_kvstore.errors import StoreClosedError
from weft_kvstore.futures import StoreFuture
from weft_kvstore.library.waits import Barriers
from weft_kvstore.local import LocalStore


def refused(future: Future[None]) -> bool:
    return isinstance(future.exception(WAIT_S), StoreRefusedError)


def test_more_rows_of_a_growing_table_than_shards_take_at_once_are_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("sharding", "library.row_calls"):
        monkeypatch.setattr(f"weft_kvstore.{module}.MOST_ROWS_A_CALL", 100)
    table = Key(shape=(0, 2), rows=True, initializer=0.0, growth={})
    (store,) = make(describe({"t": table}, rule="sgd", lr=1.0))
    for call in (store.push_rows, store.pushpull_rows):
        with pytest.raises(StoreRefusedError, match="of key 't': 800 rows; a call may have 100"):
            call("t", np.arange(800), ones(800, 2))
    store.push_rows("t", np.arange(100), ones(100, 2))
    assert store.pull_rows("t", [99]).result(WAIT_S).tolist() == [[-1.0, -1.0]]


def test_a_refused_row_stops_nobody(make: Make) -> None:
    stores = make(describe({"t": Key(shape=(6, 2), rows=True, initializer=0.0)}, slots=2, rule="sgd", lr=1.0))
    with pytest.raises(StoreRefusedError, match="id 6: the table has rows 0 to 5"):
        stores[0].push_rows("t", [6], ones(1, 2))
    assert stores[0].steps("t") == 0
    for store in stores:
        store.push_rows("t", [0], ones(1, 2))
    assert [store.pull_rows("t", [0]).result(WAIT_S).tolist() for store in stores] == [[[-2.0, -2.0]]] * 2


@pytest.mark.parametrize("compression", [None, {"gradients": {"kind": "2bit", "threshold": 1.0}, "least_bytes": 1}])
def test_a_refused_step_is_asked_for_until_it_is_pushed_again(make: Make, compression: dict[str, Any] | None) -> None:
    store, other = make(describe({"w": zero(2)}, slots=2, rule="sgd", lr=1.0, compression=compression))
    for step in range(3):
        store.push("w", ones(2), step=step)
    assert refused(store.push("w", ones(2), step=3))
    assert store.steps("w") == 4
    told = r"of key 'w': step 3 has to be pushed again, with step=3; its push failed: .*step 3: more than 2 steps ahead"
    for call in (store.push, store.pushpull):
        with pytest.raises(StoreRefusedError, match=told):
            call("w", ones(2))
    with pytest.raises(StoreRefusedError, match=told):
        store.end_step()
    with pytest.raises(StoreRefusedError, match=told.removeprefix("of key 'w': ")):
        store.pull("w").result(WAIT_S)
    for _ in range(4):
        other.push("w", ones(2)).result(WAIT_S)
    store.push("w", ones(2), step=3).result(WAIT_S)
    other.push("w", ones(2))
    assert store.pushpull("w", ones(2)).result(WAIT_S).tolist() == [-10.0, -10.0]


@pytest.mark.parametrize("again", [3, None])
@pytest.mark.parametrize("commit", [None, {"skip": True}])
def test_an_end_of_a_step_that_was_refused_is_made_again(
    make: Make, caplog: pytest.LogCaptureFixture, commit: dict[str, Any] | None, again: int | None
) -> None:
    """Of that step and of no later one, with the keys that were not pushed in it."""
    store, other = make(describe({"w": zero(2), "b": zero(2)}, slots=2, rule="sgd", lr=1.0, commit=commit))
    for _ in range(3):
        store.push("w", ones(2))
        store.end_step()
    assert refused(store.end_step())
    assert "end_step has to be called again for step 3: slot 0: " in caplog.text
    with pytest.raises(StoreRefusedError, match="end_step: step 2: the next to end is step 3"):
        store.end_step(2)
    for _ in range(3):
        other.push("w", ones(2))
        other.end_step().result(WAIT_S)
    store.pull("w", version=3).result(WAIT_S)
    other.push("w", ones(2))
    other.end_step()
    store.end_step(again).result(WAIT_S)
    assert [store.steps(key) for key in "wb"] == [4, 4]
    assert store.pull(["w", "b"]).result(WAIT_S)[0].tolist() == [-7.0, -7.0]


def test_an_end_of_a_step_that_was_late_is_made_again_with_its_outcome() -> None:
    description = describe({"w": zero(2)}, slots=2, rule="sgd", lr=1.0, commit={"clip_norm": 100.0})
    with KVStore.local(description, timeout_s=0.2) as store:
        other = store.at_slot(1)
        store.push("w", ones(2)).result(WAIT_S)
        for _ in range(2):
            with pytest.raises(StoreTimeoutError):
                store.end_step().result(WAIT_S)
        other.push("w", ones(2)).result(WAIT_S)
        outcomes = [one.end_step().result(WAIT_S) for one in (other, store)]
        assert outcomes[0] == outcomes[1] is not None
        assert [one.steps("w") for one in (store, other)] == [1, 1]


def test_a_compressed_push_that_was_refused_and_finds_no_memory_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compression = {"gradients": {"kind": "2bit", "threshold": 1.0}, "least_bytes": 1}
    description = describe({"w": zero(2)}, slots=2, rule="sgd", lr=1.0, compression=compression)
    with faces("network", description) as (store, other):
        for _ in range(3):
            store.push("w", ones(2)).result(WAIT_S)
        assert refused(store.push("w", ones(2)))
        with monkeypatch.context() as patched:
            patched.setattr("weft_kvstore.client.operation.EncodedSegment", Mock(side_effect=MemoryError("none")))
            with pytest.raises(StoreError, match="no memory"):
                store.push("w", ones(2), step=3).result(WAIT_S)
        for _ in range(4):
            other.push("w", ones(2)).result(WAIT_S)
        store.push("w", ones(2), step=3).result(WAIT_S)
        assert store.pull("w").result(WAIT_S).tolist() == [-8.0, -8.0]


@pytest.mark.parametrize("keys", [["w"], ["w", "plain"], ["plain", "w", "v"]])
def test_a_compressed_step_that_is_pushed_twice_counts_once(make: Make, keys: list[str]) -> None:
    """Also in a list with keys that travel as they are, or have not arrived before."""
    compression = {"gradients": {"kind": "2bit", "threshold": 1.0}, "least_bytes": 1}
    described = {"w": zero(2), "v": zero(2), "plain": Key((2,), initializer=0.0, compression={})}
    (store,) = make(describe(described, slots=1, rule="sgd", lr=1.0, compression=compression))
    gradients = {"w": ones(2), "v": -ones(2), "plain": 2 * ones(2)}
    some = [gradients[key] for key in keys]
    store.push("w", gradients["w"]).result(WAIT_S)
    for _ in range(2):
        assert store.push(keys, some, step=0).result(WAIT_S) is None
        found = store.pushpull(keys, some, step=0).result(WAIT_S)
        assert [one.tolist() for one in found] == [(-one).tolist() for one in some]
    store.push(keys, some).result(WAIT_S)
    store.end_step().result(WAIT_S)
    assert [one.tolist() for one in store.pull(keys).result(WAIT_S)] == [(-2 * one).tolist() for one in some]


@pytest.mark.parametrize("call", ["", "push", "pull"])
def test_a_mistyped_step_of_a_compressed_key_is_not_encoded(make: Make, call: str) -> None:
    """Neither the first, nor of one that was pushed, nor of one whose version is known."""
    compression = {"gradients": {"kind": "2bit", "threshold": 1.0}, "least_bytes": 1}
    (store,) = make(describe({"w": zero(2)}, slots=1, rule="sgd", lr=1.0, compression=compression))
    if call == "push":
        store.push("w", ones(2)).result(WAIT_S)
    if call:
        store.pull("w").result(WAIT_S)
    with pytest.raises(StoreRefusedError, match="step 4 is ahead of step"):
        store.push("w", np.full(2, 0.5, np.float32), step=4)
    store.push("w", ones(2)).result(WAIT_S)
    assert store.pull("w").result(WAIT_S).tolist() == [-2.0 if call == "push" else -1.0] * 2


@pytest.mark.parametrize("call", ["push", "pushpull"])
def test_a_step_that_skips_others_has_not_begun(make: Make, caplog: pytest.LogCaptureFixture, call: str) -> None:
    """It is a slip of the caller: shards would wait for what was skipped."""
    (store,) = make(describe({"w": zero(2), "b": zero(2)}, rule="sgd", lr=1.0))
    store.push("w", ones(2))
    far = "step 2 is ahead of step"
    first = f"key 'b': {far} 0, the next of this slot; to go on where another process was, connect with step=2"
    for keys, told in (("w", f"key 'w': {far} 1, the next of this slot$"), ("b", first), (["b", "w"], first)):
        with pytest.raises(StoreRefusedError, match=f"^slot 0: {call} of {told}"):
            getattr(store, call)(keys, [ones(2)] * 2 if isinstance(keys, list) else ones(2), step=2)
    assert (store.steps("w"), store.steps("b"), caplog.text) == (1, 0, "")
    assert store.pull("w").result(WAIT_S).tolist() == [-1.0, -1.0]
    store.end_step().result(WAIT_S)
    assert store.pushpull(["w", "b"], [ones(2)] * 2).result(WAIT_S)[0].tolist() == [-2.0, -2.0]


def test_what_was_pushed_too_far_ahead_is_not_replaced_by_what_is_pushed_next(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    stores = make(describe({"w": zero()}, slots=2, rule="sgd", lr=1.0))
    pushes = [stores[0].push("w", np.float32(10**step)) for step in range(4)]
    assert refused(pushes[-1])
    assert "it has to be pushed again: slot 0: " in caplog.text
    for _ in range(4):
        stores[1].push("w", np.float32(0)).result(WAIT_S)
    with pytest.raises(
        StoreRefusedError, match=r"step 3 has to be pushed again, with step=3; .*more than 2 steps ahead"
    ):
        stores[0].push("w", np.float32(10**4))
    stores[0].push("w", np.float32(10**3), step=3).result(WAIT_S)
    for store in stores:
        store.push("w", np.float32(10**4 if store.slot == 0 else 0)).result(WAIT_S)
    assert stores[0].pull("w").result(WAIT_S) == -11111.0


def test_several_steps_that_were_refused_are_asked_for_one_after_the_other(make: Make) -> None:
    stores = make(describe({"w": zero(2)}, slots=2, rule="sgd", lr=1.0))
    pushes = [stores[0].push("w", ones(2)) for _ in range(5)]
    assert [refused(push) for push in pushes[3:]] == [True, True]
    for _ in range(5):
        stores[1].push("w", ones(2)).result(WAIT_S)
    for step in (3, 4):
        with pytest.raises(StoreRefusedError, match=f"step {step} has to be pushed again"):
            stores[0].push("w", ones(2))
        stores[0].push("w", ones(2), step=step).result(WAIT_S)
    assert stores[1].pull("w").result(WAIT_S).tolist() == [-10.0, -10.0]
    assert [store.steps("w") for store in stores] == [5, 5]


def ended(error: Exception | None = None) -> Future[None]:
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


def test_a_step_that_is_pushed_again_has_failed_no_more_unless_the_call_raises() -> None:
    steps, begun, silent, far = steps_of("w"), StoreFuture[None](), StoreLostError("silent"), StoreRefusedError("far")
    for _ in range(3):
        push(steps, "w", None, begun)
    steps._failed["w"] = {0: silent, 2: far}
    told = r"of key 'w': step 2 has to be pushed again, with step=2; its push failed: far"
    with pytest.raises(StoreRefusedError, match=told):
        push(steps, "w", None, begun)
    for step in (0, 2):
        with pytest.raises(ZeroDivisionError):
            steps.push("push", ["w"], step, [], lambda *_: 1 // 0)
    told = r"step 0 has to be pushed again, .* failed: ZeroDivisionError was raised in the middle of the call: integer"
    with pytest.raises(StoreRefusedError, match=told):
        push(steps, "w", None, begun)
    push(steps, "w", 0, begun)
    assert [*steps._failed["w"]] == [2]
    push(steps, "w", 2, begun)
    push(steps, "w", None, begun)
    assert (steps.of("w"), steps._failed["w"]) == (4, {})


@pytest.mark.parametrize(("error", "failed"), [(StoreError("no room"), [0]), (StoreClosedError("closed"), [])])
def test_gradients_that_cannot_be_copied_to_the_host_have_failed_as_other_pushes_have(
    monkeypatch: pytest.MonkeyPatch, error: StoreError, failed: list[int]
) -> None:
    steps, begun = steps_of("w"), StoreFuture[None]()
    monkeypatch.setattr(steps._traffic, "bring", lambda *_: ended(error))
    steps.push("push", ["w"], None, [object()], lambda *_: begun)
    assert list(steps._failed.get("w", ())) == failed
    monkeypatch.setattr(steps._traffic, "bring", lambda _where, _names, _arrays, begin: begin([]))
    steps.push("push", ["w"], 0, [object()], lambda *_: begun)
    begun.set_exception(error)  # What has begun is the core's to note.
    assert not steps._failed.get("w")


def test_a_call_that_finds_no_memory_names_itself_and_its_key(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError("full")

    (store,) = make(describe({"t": Key(shape=(6, 2), rows=True, initializer=0.0)}, rule="sgd"))
    monkeypatch.setattr("weft_kvstore.client.operation.summed_rows", full)
    with pytest.raises(StoreError, match="slot 0: push of rows of key 't', step 0: no memory: full"):
        store.push_rows("t", [0, 0], ones(2, 2)).result(WAIT_S)


@pytest.mark.parametrize(("error", "told"), [(MemoryError, "no memory"), (IndexError, "IndexError")])
@pytest.mark.parametrize("pushes", [False, True])
def test_a_call_whose_result_cannot_be_made_fails_alone_and_what_it_has_pushed_counts(
    make: Make, pushes: bool, error: type[Exception], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error("at the end")

    stores = make(describe({"t": Key(shape=(8, 3), rows=True, initializer=0.0)}, slots=2, rule="sgd", lr=1.0))
    stores[1].push_rows("t", [1], ones(1, 3)).result(WAIT_S)
    with monkeypatch.context() as patched:
        patched.setattr("weft_kvstore.client.operation.spread_rows", fails)
        begun = stores[0].pushpull_rows("t", [1, 1], ones(2, 3)) if pushes else stores[0].pull_rows("t", [1, 1])
        with pytest.raises(StoreError, match=f"slot 0: .*of rows of key 't'.*: {told}: at the end"):
            begun.result(WAIT_S)
    for store in stores:
        pulled = store.pull_rows("t", [1, 1], version=int(pushes)).result(WAIT_S)
        assert pulled.tolist() == [[-3.0 * pushes] * 3] * 2
    stores[0].push_rows("t", [1], ones(1, 3)).result(WAIT_S)  # No step has to be pushed again.


def test_of_a_closed_store_nothing_has_to_be_pushed_again(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    (store,) = make(describe({"w": zero(2)}, rule="sgd"))
    store.close()
    for call in (
        lambda: store.push("w", ones(2)),
        lambda: store.pushpull("w", ones(2)),
        lambda: store.pull("w"),
        store.end_step,
        lambda: store.push("w", ones(2)),
    ):
        error = call().exception(WAIT_S)
        assert type(error) is StoreClosedError
        assert re.fullmatch(r"slot 0: .* the store was closed", str(error))
    assert caplog.text == ""


def test_calls_that_a_store_has_not_begun_when_it_is_closed_end_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull has failed with the push before it when its own turn comes."""
    monkeypatch.setattr(LocalStore, "_round", lambda store: store._wakes.get())
    store = KVStore.local(describe({"w": zero(2)}, rule="sgd"))
    calls = [call() for _ in range(3) for call in (lambda: store.push("w", ones(2)), lambda: store.pull("w"))]
    store.close()
    assert {type(call.exception(WAIT_S)) for call in calls} == {StoreClosedError}


def test_barriers_may_be_called_ahead(make: Make) -> None:
    stores = make(describe({"w": zero(2)}, slots=2, rule="sgd"))
    early = [stores[0].barrier() for _ in range(6)]
    for number in range(6):
        assert not early[number].done()
        stores[1].barrier().result(WAIT_S)
        early[number].result(WAIT_S)
    both = [store.barrier() for store in stores]
    assert [one.result(WAIT_S) for one in both] == [None, None]


class RefusesOnce:
    """A store of one slot, of which the second push is refused. What it is asked for is in `pushed`."""

    def __init__(self, store: Store, *, raises: bool) -> None:
        self._store = store
        self._raises = raises
        self.pushed: list[int] = []

    def submit(self, operation: Operation) -> Future[Any]:
        if operation.pushes is not None:
            self.pushed.append(operation.pushes)
            if len(self.pushed) == 2 and self._raises:
                raise StoreRefusedError("no")
            if len(self.pushed) == 2:
                return ended(StoreRefusedError("no"))
        return self._store.submit(operation)


@pytest.mark.parametrize("raises", [False, True])
def test_a_refused_barrier_is_made_again_with_its_number(make: Make, raises: bool) -> None:
    (store,) = make(describe({"w": zero(2)}, rule="sgd"))
    once = RefusesOnce(store._store, raises=raises)
    assert store._barriers is not None
    barriers = Barriers(once, store._barriers._key)  # type: ignore[arg-type]  # it stands in for a store
    barriers.meet().result(WAIT_S)
    with pytest.raises(StoreRefusedError, match="no"):
        barriers.meet().result(WAIT_S)
    barriers.meet().result(WAIT_S)
    assert once.pushed == [0, 1, 1]


def test_a_forked_child_is_told_to_connect_and_closes_nothing(make: Make) -> None:
    (store,) = make(describe({"w": zero(2)}, rule="sgd", lr=1.0))
    own, keys = store._store, store._registry.key_list("w", "pull")
    calls: list[Callable[[], object]] = [
        lambda: store.push("w", ones(2)),
        lambda: store.pull("w"),
        lambda: store.steps("w"),
        lambda: store.gradient_buffer("w"),
        store.statistics,
        store.barrier,
        lambda: own.submit(KeyOperation(keys, version=0)),
        lambda: own.memory.gradient(0),
        lambda: own.memory.value(0),
    ]
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Others warn of a fork among threads, which is what this is about.
        child = os.fork()
    if not child:
        try:
            for call in calls:
                try:
                    call()
                except StoreError as error:
                    os.write(writer, f"{error}\n".encode())
            store._store.close()
            store.close()
            os.write(writer, b"closed")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as found:
        told = found.read().splitlines()
    os.waitpid(child, 0)
    wanted = f"this store belongs to process {os.getpid()}, this is process {child}: connect after the fork"
    assert told == [wanted] * len(calls) + ["closed"]
    assert store.pushpull("w", ones(2)).result(WAIT_S).tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("is_under_way", [False, True])
@pytest.mark.parametrize("keys", ["w", ["w"], ["w", "x"], ["x", "w"]])
def test_a_pull_that_has_failed_with_a_push_writes_nothing_any_more(
    make: Make, keys: str | list[str], is_under_way: bool
) -> None:
    store, other = make(describe({"w": zero(2), "x": zero(3)}, slots=2, rule="sgd", lr=1.0))
    if keys == "w":
        store.pull("w").result(WAIT_S)  # The version of the key is checked once.
    out = {"w": np.full(2, 7.0, np.float32), "x": np.full(3, 7.0, np.float32)}
    store.push("x", ones(3)).result(WAIT_S)
    other.push("x", ones(3))  # A call of several keys at several versions fails once all of it has ended.
    pushes = [store.push("w", ones(2)) for _ in range(4)]
    if not is_under_way:
        assert refused(pushes[-1])
    assert refused(store.pull(keys, out=out["w"] if keys == "w" else [out[key] for key in keys]))
    assert [refused(push) for push in pushes] == [False] * 3 + [True]
    assert store.statistics().operations == 0
    for array in out.values():
        array[:] = 42.0
    for _ in range(4):
        other.push("w", ones(2))
    other.pull("w", version=3).result(WAIT_S)
    store.push("w", ones(2), step=3)
    assert [value.tolist() for value in store.pull(["w", "x"]).result(WAIT_S)] == [[-8.0] * 2, [-2.0] * 3]
    assert (out["w"].tolist(), out["x"].tolist()) == ([42.0] * 2, [42.0] * 3)


def test_a_pull_of_rows_that_has_failed_with_a_push_is_open_no_more(make: Make) -> None:
    store, other = make(describe({"t": Key(shape=(6, 2), rows=True, initializer=0.0)}, slots=2, rule="sgd", lr=1.0))
    pushes = [store.push_rows("t", [0], ones(1, 2)) for _ in range(4)]
    assert refused(store.pull_rows("t", [0, 5]))
    assert [refused(push) for push in pushes] == [False] * 3 + [True]
    assert store.statistics().operations == 0
    for _ in range(4):
        other.push_rows("t", [0], ones(1, 2))
    other.pull_rows("t", [0], version=3).result(WAIT_S)
    store.push_rows("t", [0], ones(1, 2), step=3)
    assert store.pull_rows("t", [0]).result(WAIT_S).tolist() == [[-8.0, -8.0]]
