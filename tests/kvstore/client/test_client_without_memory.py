"""Short histories of a client of two shards, in each of which its memory fails once: an operation fails alone, and its
push is known as one that has failed until it is made again; or the client ends, and all that is open with it.

What fails is each line of the store that makes an array, copies bytes, or calls what does, when it is first met: in
beginning, sending and receiving, and in ending futures.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import ByName, given, key_of, pushpull_rows, store_of, table_of
from store_memory_faults import Faulty, MemoryFault, each_fault
from weft_kvstore.arrays import Array
from weft_kvstore.client.core import ClientCore
from weft_kvstore.description.records import (
    CommitDescription,
    CompressionDescription,
    Kind,
    StoreCompression,
    StoreDescription,
)
from weft_kvstore.errors import StoreClosedError
from weft_kvstore.same_host.memory import SharedMemory
from weft_kvstore.settings import LinkSettings

IDS = np.array([1, 3, 4, 9])
COMPRESSED = StoreCompression(
    gradients=CompressionDescription(Kind.TWO_BIT, threshold=0.5),
    weights=CompressionDescription(Kind.FP16, residual=False),
    least_bytes=0,
)
Call = Callable[[ByName], Future[Any]]


def numbers(*place: int, shape: Any) -> Array:
    return np.random.default_rng(place).standard_normal(shape).astype(np.float32)


def described(**more: Any) -> StoreDescription:
    keys = key_of("w", [40], 1), given(key_of("v", [24], 1)), table_of("t", [12, 2], 1)
    rule: dict[str, Any] = {"rule": "momentum", "hyper": {"lr": 0.1, "momentum": 0.9}}
    return msgspec.structs.replace(store_of(keys, slots=1, shards=2, slice_bytes=64, **rule), **more)


def steps_of(step: int) -> list[tuple[str, Call]]:
    """The calls of a step, by name."""
    w, v, t = numbers(step, 1, shape=40), numbers(step, 2, shape=24), numbers(step, 3, shape=(4, 2))
    return [
        ("push", lambda store: store.push("w", step, [w][0])),
        ("pushpull", lambda store: store.pushpull(store.key_list("v"), step, [v])),
        ("pushpull t", lambda store: pushpull_rows(store, step, t, IDS[::-1].copy(), np.array([4, 2, 3]))),
        ("pull", lambda store: store.pull(["w", "v"], step + 1)),
        ("pull t", lambda store: store.pull("t", step + 1, np.array([4, 4, -1, 1]), priority=1)),
        ("state", lambda store: store.pull("w", step + 1, state=True)),
        ("end", lambda store: store.barrier(step, [])),
    ]


def trained(fault: MemoryFault, description: StoreDescription, **options: Any) -> Faulty:
    """What fails while the client lives is called again, in the same order."""
    settings = LinkSettings(frame_bytes=100, credit_bytes=400)
    simulation = Faulty(description, fault, ClientCore, settings=settings, **options)
    store = simulation.stores[0]

    first: list[tuple[str, Call]] = [
        ("set", lambda one: one.set("v", 0, numbers(9, shape=24))),
        ("lr", lambda one: one.set_hyper({"lr": 0.5}, step=1)),
    ]
    for calls, step in ((first, 0), (steps_of(0), 0), (steps_of(1), 1)):
        made = [(name, call, call(store)) for name, call in calls]
        simulation.happen(5)
        if step:
            simulation.cut(0, 1)
        for _ in range(4):
            simulation.settle(simulation.choose)
            for at, (name, call, future) in enumerate(made):
                if simulation.clients and future.done() and future.exception(0) is not None:
                    if step in store.failed.get(PUSHED.get(name, ""), {}):  # Else shards have all of it.
                        behind = store.pull(PUSHED[name], step + 1, IDS if PUSHED[name] == "t" else None)
                        simulation.settle(simulation.choose)
                        assert "has to be pushed again" in str(behind.exception(0))
                    made[at] = name, call, call(store)
        for name, _, future in made:
            simulation.call(name, future)
    simulation.call("w", store.pull("w", 2))
    return simulation


PUSHED = {"push": "w", "pushpull": "v", "pushpull t": "t"}


@pytest.mark.parametrize("more", [{}, {"commit": CommitDescription(clip_norm=1.0)}, {"compression": COMPRESSED}])
@pytest.mark.parametrize("shared", [False, True])
def test_memory_that_fails_once_fails_an_operation_or_the_client(
    more: dict[str, Any], shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SharedMemory, "least_bytes", 1)
    for line, store, expected in each_fault(lambda fault: trained(fault, described(**more), shared=shared)):
        for (name, value), (_, told) in zip(expected, store.outcomes(), strict=True):
            if isinstance(told, Exception):
                assert not store.clients, (line, name, told)
                assert isinstance(told, StoreClosedError), (line, name, told)
            else:
                assert told == value, (line, name)
        assert not (store.clients and store.leaks()), line
