"""Who waits for a result where it could never come is told so, and does not wait for ever."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import Any

import numpy as np
import pytest

from face_stores import WAIT_S, faces
from weft_kvstore import Key, KVStore, StoreError, describe


def a_key() -> dict[Any, Any]:
    return {"w": Key(shape=(2,), initializer=0.0)}


@pytest.mark.parametrize("kind", ["network", "local"])
def test_a_forked_child_is_told_that_a_future_of_before_never_ends(kind: str) -> None:
    with faces(kind, describe(a_key(), rule="sgd", lr=1.0)) as (store,):
        future = store.pull("w", version=9)
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Others warn of a fork among threads, which is what this is about.
            child = os.fork()
        if not child:
            signal.alarm(int(WAIT_S))  # It hung, before it was told.
            try:
                future.result()
            except StoreError as error:
                os.write(writer, str(error).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as found:
            told = found.read()
        os.waitpid(child, 0)
        assert told == (f"this store belongs to process {os.getpid()}, this is process {child}: connect after the fork")


def test_a_signals_handler_that_waits_in_the_middle_of_a_call_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's thread could not go on before the handler returns. What it began holds all the same."""
    told: list[str] = []
    begun: list[Future[Any]] = []
    with KVStore.local(describe(a_key(), rule="sgd", lr=1.0)) as store:
        changed = store._store._changed  # type: ignore[attr-defined]  # of a local store
        notify: Callable[[], None] = changed.notify

        def handle(number: int, frame: FrameType | None) -> None:
            begun.append(store.push("w", np.ones(2, np.float32)))
            try:
                begun[0].result(WAIT_S)
            except StoreError as error:
                told.append(str(error))

        def interrupted() -> None:
            monkeypatch.setattr(changed, "notify", notify)
            signal.raise_signal(signal.SIGUSR1)
            notify()

        monkeypatch.setattr(changed, "notify", interrupted)
        before = signal.signal(signal.SIGUSR1, handle)
        try:
            pulled = store.pull("w")
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert told == ["in the middle of the store's own work nobody can wait for a result of it"]
        pulled.result(WAIT_S)
        begun[0].result(WAIT_S)
        assert store.pull("w").result(WAIT_S).tolist() == [-1.0, -1.0]
