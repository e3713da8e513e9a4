"""What a slot calls first on a key goes to the store first: from several threads, and from a GPU beside the host."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import strict_copies
import weft_kvstore
from face_stores import WAIT_S, faces
from strict_copies import StrictCupy
from weft_kvstore import Key, KVStore, Store, StoreError, describe
from weft_kvstore.client.operation import Operation, PushPull

SOON_S = 0.2
"""Far longer than a thread takes that nothing keeps."""


class Recorded:
    """What a store is given to begin, in order: (call, keys, step). `at` is called before each push."""

    def __init__(self, store: Store) -> None:
        self._submit = store.submit
        store.submit = self.submit
        self.calls: list[tuple[str, str, int]] = []
        self.at: Callable[[int], object] = lambda step: None

    def submit(self, operation: Operation) -> Future[Any]:
        call, names = str(operation).split()[0], ""
        if isinstance(operation, PushPull):
            names = ",".join(operation.keys.names)
        if operation.pushes is not None:
            self.at(operation.pushes)
        self.calls.append((call, names, operation.version if call == "pull" else operation.step))
        return self._submit(operation)


@contextmanager
def recorded(*, slots: int = 1) -> Iterator[tuple[KVStore, Recorded]]:
    keys = {name: Key(shape=(4,), initializer=0.0) for name in ("w", "b")}
    keys["t"] = Key(shape=(4, 2), initializer=0.0, rows=True)
    with faces("local", describe(keys, slots=slots, rule="sgd", lr=1.0)) as (store, *_):
        yield store, Recorded(store._store)


def ones(number: float = 1.0) -> np.ndarray:
    return np.full(4, number, np.float32)


def test_a_thread_that_is_kept_between_its_number_and_its_push_is_not_overtaken() -> None:
    """With gradients that keep a residual its step could not be pushed any more."""
    with recorded() as (store, found):
        counted, other = threading.Event(), threading.Event()

        def keep(step: int) -> None:
            if threading.current_thread() is kept:
                counted.set()
                other.wait(SOON_S)
            else:
                other.set()

        found.at = keep
        kept = threading.Thread(target=lambda: store.push("w", ones()).result(WAIT_S))
        kept.start()
        assert counted.wait(WAIT_S)
        store.push("w", ones()).result(WAIT_S)
        kept.join()
        assert found.calls == [("push", "w", 0), ("push", "w", 1)]


@pytest.mark.parametrize("kind", ["2bit", "none"])
def test_threads_of_one_slot_may_push_the_same_key(kind: str) -> None:
    compression = None if kind == "none" else {"gradients": {"kind": kind, "threshold": 1.0}}
    description = describe({"w": Key(shape=(4,), initializer=0.0)}, rule="sgd", lr=1.0, compression=compression)
    with faces("network", description) as (store,):
        futures: list[Future[None]] = []

        def push() -> None:
            for _ in range(20):
                futures.append(store.push("w", ones()))
                futures[-1].result(WAIT_S)

        threads = [threading.Thread(target=push) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.steps("w") == len(futures) == 60
        assert store.pull("w").result(WAIT_S).tolist() == [-60.0] * 4


class Copies:
    """CuPy's copies, which come to their end when they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("weft_kvstore.library.user_arrays.import_cupy", StrictCupy)
        self._gone = threading.Event()
        synchronize = strict_copies.Event.synchronize

        def wait(event: strict_copies.Event) -> None:
            if threading.current_thread().name.startswith("weft-store-copies"):
                assert self._gone.wait(WAIT_S)
            synchronize(event)

        monkeypatch.setattr(strict_copies.Event, "synchronize", wait)

    def let_go(self) -> None:
        self._gone.set()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


def on_gpu(array: np.ndarray) -> strict_copies.Array:
    return strict_copies.Array(array)


def test_an_array_of_the_host_waits_behind_one_of_a_gpu_for_the_same_key_and_for_no_other(copies: Copies) -> None:
    with recorded() as (store, found):
        pushes = [store.push("w", on_gpu(ones())), store.push("w", ones(2))]
        pushes.append(store.push(["b"], [ones()]))
        pulled = store.pull("w")
        assert found.calls == [("push", "b", 0)]
        assert not pulled.done()
        copies.let_go()
        for push in pushes:
            push.result(WAIT_S)
        assert pulled.result(WAIT_S).tolist() == [-3.0] * 4
        assert [call for call in found.calls if call[0] == "push"] == [
            ("push", name, step) for name, step in [("b", 0), ("w", 0), ("w", 1)]
        ]
        store.push("w", ones())
        assert found.calls[-1] == ("push", "w", 2), "nothing is under way any more"


def test_a_list_of_keys_waits_behind_each_of_them(copies: Copies) -> None:
    with recorded() as (store, found):
        first, second = store.push("w", on_gpu(ones())), store.push("b", ones())
        both = store.push(["w", "b"], [ones(), ones()])
        after = store.push("b", ones())
        copies.let_go()
        for one in (first, second, both, after):
            one.result(WAIT_S)
        assert store.pull(["w", "b"]).result(WAIT_S)[1].tolist() == [-3.0] * 4
        assert (
            found.calls.index(("push", "b", 0))
            < found.calls.index(("push", "w", 0))
            < found.calls.index(("push", "b", 2))
        )


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_rows_and_ids_of_a_gpu_keep_the_order_of_their_table(copies: Copies, dtype: type) -> None:
    with recorded() as (store, found):
        rows, ids = np.ones((2, 2), np.float32), np.array([0, 1], dtype)
        store.push_rows("t", on_gpu(ids), rows)
        store.push_rows("t", ids, rows)
        pulled, both = store.pull_rows("t", ids), store.pushpull_rows("t", ids, rows)
        assert found.calls == []
        copies.let_go()
        assert pulled.result(WAIT_S).tolist() == [[-2.0, -2.0]] * 2
        assert both.result(WAIT_S).tolist() == [[-3.0, -3.0]] * 2
        assert found.calls == [("push", "t", 0), ("push", "t", 1), ("pull", "t", 2), ("pushpull", "t", 2)]
        store.push_rows("t", ids, rows)
        store.pushpull_rows("t", ids, rows)
        assert found.calls[4:] == [("push", "t", 3), ("pushpull", "t", 4)]


def test_a_value_of_a_gpu_is_set_before_the_word_that_there_is_nothing_and_before_a_pull(copies: Copies) -> None:
    with recorded() as (store, found):
        store.set("w", on_gpu(ones(7)), version=1)
        ended = store.end_step()
        pulled = store.pull("w", version=1)
        assert found.calls == []
        copies.let_go()
        assert pulled.result(WAIT_S).tolist() == [7.0] * 4
        ended.result(WAIT_S)
        assert [call for call, *_ in found.calls] == ["set", "barrier", "pull"]


def test_a_copy_that_breaks_keeps_nothing_back(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("an illegal memory access")

    with recorded() as (store, found):
        monkeypatch.setattr(strict_copies.Event, "synchronize", broken)
        failed = store.push("w", on_gpu(ones()))
        told = "slot 0: push of key 'w': a copy between GPU and host failed: an illegal memory access"
        with pytest.raises(StoreError, match=told):
            failed.result(WAIT_S)
        with pytest.raises(StoreError, match=r"step 0 has to be pushed again, with step=0; .* illegal memory access"):
            store.push("w", ones())
        store.push("w", ones(), step=0).result(WAIT_S)
        assert found.calls == [("push", "w", 0)]


def test_a_copy_that_a_closed_store_cannot_begin_names_its_call(copies: Copies) -> None:
    with recorded() as (store, _):
        first = store.push("w", on_gpu(ones()))
        copies.let_go()
        first.result(WAIT_S)
        store.close()
        for call in (
            lambda: store.push(["w", "b"], [on_gpu(ones())] * 2),
            lambda: store.set("w", on_gpu(ones()), version=3),
        ):
            with pytest.raises(StoreError, match=r"slot 0: (push of key 'w' and 1 more|set of key 'w'): the store was"):
                call().result(WAIT_S)


def test_what_a_thread_asks_of_a_key_is_told_while_another_pushes() -> None:
    """A signal's handler and a callback may call too: the lock is not theirs to wait for in vain."""
    with recorded() as (store, found):
        seen: list[int] = []
        found.at = lambda _: seen.append(store.steps("w"))
        store.push("w", ones()).result(WAIT_S)
        assert seen == [1]


@pytest.mark.parametrize("is_numbered", [False, True])
def test_a_pushpull_is_one_operation(is_numbered: bool) -> None:
    with recorded() as (store, found):
        for step in range(3):
            number = step if is_numbered else None
            store.pushpull("w", ones(), step=number).result(WAIT_S)
            store.pushpull_rows("t", [1], np.ones((1, 2), np.float32), step=number).result(WAIT_S)
        assert [call for call, *_ in found.calls] == ["pushpull"] * 6


@pytest.mark.parametrize("call", ["push", "pushpull", "end_step"])
def test_a_signals_handler_that_pushes_the_key_in_the_middle_of_a_call_loses_no_gradient(call: str) -> None:
    """It comes at each place where CPython runs handlers: as a function begins, and as one of C has returned."""
    file = str(Path(weft_kvstore.__file__).parent / "library" / "calls.py")
    ones = np.ones(2, np.float32)
    begin: dict[str, Callable[[KVStore], Future[Any]]] = {
        "push": lambda store: store.push("w", ones),
        "pushpull": lambda store: store.pushpull("w", ones),
        "end_step": lambda store: store.end_step(),
    }
    description = describe({"w": Key(shape=(2,), initializer=0.0)}, rule="sgd", lr=1.0)
    with KVStore.local(description, timeout_s=WAIT_S) as store:
        pushed = left = 0
        by_handler: list[Future[Any]] = []

        def at_each(frame: FrameType, event: str, _: object) -> None:
            nonlocal left
            if frame.f_code.co_filename == file and event in {"call", "c_return"}:
                left -= 1
                if not left:
                    sys.setprofile(None)
                    by_handler.append(store.push("w", ones))

        for place in count(1):
            left = place
            by_handler.clear()
            before = sys.getprofile()
            sys.setprofile(at_each)
            try:
                future = begin[call](store)
            finally:
                sys.setprofile(before)
            for one in (future, *by_handler):
                one.result(WAIT_S)
            pushed += len(by_handler) + (call != "end_step")
            assert (store.pull("w").result(WAIT_S) == -pushed).all(), place
            if not by_handler:
                break
        assert place > 10
