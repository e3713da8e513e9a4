"""`KVStore`s of every slot of a small store, over shards of this process or local."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import numpy as np

from store_cluster import served
from weft_kvstore import Key, KVStore, StoreDescription, describe
from weft_kvstore.client.plan import Keys
from weft_kvstore.library.calls import SlotSteps
from weft_kvstore.library.user_arrays import ArrayTraffic

WAIT_S = 60.0
"""Deadline of every future in these tests: far above what any takes, below the test's own."""


Make = Callable[..., Sequence[KVStore]]


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def zero(*shape: int) -> Key:
    return Key(shape=shape, initializer=0.0)


def steps_of(*names: str, start: int = 0) -> SlotSteps:
    """The steps of slot 0 of a store with these keys; what is pushed and pulled is the test's."""
    registry = Keys(describe({name: zero(2) for name in names}, rule="sgd", barrier=False), 0)
    return SlotSteps({}, registry, ArrayTraffic(), start)


def push(steps: SlotSteps, name: str, step: int | None, future: Future[Any]) -> None:
    steps.push("push", [name], step, [], lambda *_: future)


def pull(steps: SlotSteps, name: str, version: int, future: Future[Any]) -> None:
    steps.pull("pull", [name], version, [], lambda *_: future)


@contextmanager
def faces(kind: str, description: StoreDescription, *, timeout_s: float = WAIT_S) -> Iterator[Sequence[KVStore]]:
    """A `KVStore` for each slot: "network" or "local"."""
    with ExitStack() as stack:
        if kind == "local":
            store = stack.enter_context(KVStore.local(description, timeout_s=timeout_s))
            yield [store, *(store.at_slot(slot) for slot in range(1, description.slots))]
            return
        found, _ = stack.enter_context(served(msgspec.structs.replace(description, shards=("", ""))))
        yield [
            stack.enter_context(KVStore.connect(found, slot, timeout_s=timeout_s)) for slot in range(description.slots)
        ]
