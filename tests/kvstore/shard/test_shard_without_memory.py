"""Short histories of a shard, in each of which its memory fails once: the job goes on as if nothing had been, or all
slots hear that it has failed, and why.

What fails is each line of the store that makes an array, copies bytes, or calls what does, when it is first met: in
receiving, merging, answering and sending, and in what rules and captures do there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import given, key_of, pushpull_rows, store_of, table_of
from store_memory_faults import NO_ROOM, Faulty, MemoryFault, as_bytes, each_fault
from weft_kvstore.arrays import Array
from weft_kvstore.bucket import bucket as bucket_module
from weft_kvstore.description.records import (
    CommitDescription,
    GrowthDescription,
    KeyDescription,
    Mode,
    Sparse,
    StoreDescription,
)
from weft_kvstore.errors import StoreLostError
from weft_kvstore.futures import OtherThread, finished
from weft_kvstore.same_host.memory import SharedMemory
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard import merger as merger_module
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.snapshot import Capture, Captured
from weft_kvstore.wire.messages import PayloadKind

IDS = np.array([1, 3, 4, 9])
RULE: dict[str, Any] = {"rule": "momentum", "hyper": {"lr": 0.1, "momentum": 0.9}, "slice_bytes": 64, "shards": 1}


def numbers(*place: int, shape: Any) -> Array:
    """Gradients, or values, always the same at a place."""
    return np.random.default_rng(place).standard_normal(shape).astype(np.float32)


def described(*keys: KeyDescription, slots: int = 2, **more: Any) -> StoreDescription:
    changed = {name: more.pop(name) for name in ("commit", "compression") if name in more}
    return msgspec.structs.replace(store_of(keys, slots=slots, **RULE | more), **changed)


def captured(store: Faulty, step: int) -> Callable[[], None]:
    """Captures the shard at a step. What is returned calls it a call, if it has succeeded, and releases it."""
    core = store.shards[0]
    found: list[Any] = []

    def begin() -> None:
        if core.job is not None:
            Capture(core.job, step, found.append, OtherThread(lambda work: work(), lambda: core.job is None))

    store._run(core, begin)

    def read() -> None:
        if found and isinstance(found[0], Captured):
            if core.job is not None:
                parts = [(one.array, one.key, [*map(as_bytes, one.values)]) for one in found[0].arrays()]
                store.call("capture", finished(parts))
            found[0].release()

    return read


def dense_keys_and_rows(fault: MemoryFault, **options: Any) -> Faulty:
    """Of several slots, in several frames; values that are set, for now and for later; rules that change; a connection
    that breaks; a capture."""
    description = described(key_of("w", [40], 2), given(key_of("v", [24], 2)), table_of("t", [12, 2], 2))
    settings = LinkSettings(frame_bytes=100, credit_bytes=400)
    store = Faulty(description, fault, ShardCore, settings=settings, keeps_previous=True, **options)
    first, second = store.stores[0], store.stores[1]
    store.call("set v", first.set("v", 0, numbers(1, shape=24)))
    for step in range(3):
        if step == 1:
            store.call("lr", first.set_hyper({"lr": 0.5}, step=1))
            store.call("set w", second.set("w", 2, numbers(2, shape=40)))
            store.call("set t", second.set("t", 2, numbers(3, shape=(2, 2)), np.array([3, 5])))
            read = captured(store, 2)
        store.call("pull", first.pull(["w", "v"], step + 1))
        store.call("read", second.pull("w", step, exact=True))
        gradients = [numbers(step, 1, shape=40), numbers(step, 2, shape=24)]
        store.call("push", first.push(["w", "v"], step, gradients))
        store.call("push t", first.push("t", step, numbers(step, 3, shape=(4, 2)), IDS))
        store.call("pull t", first.pull("t", step + 1, np.array([2, 3, 4])))
        store.happen(3)
        if step == 2:
            store.cut(0, 0)
        store.call("pushpull", second.pushpull(second.key_list("w"), step, [numbers(step, 4, shape=40)]))
        rows = numbers(step, 5, shape=(3, 2))
        store.call("pushpull t", pushpull_rows(second, step, rows, np.array([3, 4, 5])))
        store.call("end", second.barrier(step, ["v"]))
        store.end()
    for key in ("w", "v"):
        store.call(key, first.pull(key, 3))
        store.call(f"state of {key}", second.pull(key, 3, state=True))
    store.call("t", first.pull("t", 3, np.arange(12)))
    store.call("state of t", first.pull("t", 3, np.arange(12), state=True))
    read()
    return store


def in_shared_memory(fault: MemoryFault) -> Faulty:
    return dense_keys_and_rows(fault, shared=True)


def committed_steps(fault: MemoryFault) -> Faulty:
    commit = CommitDescription(clip_norm=1.0)
    store = Faulty(described(key_of("w", [40], 2), table_of("t", [12, 2], 2), commit=commit), fault, ShardCore)
    for step in range(2):
        for slot, one in store.stores.items():
            store.call("push", one.push("w", step, numbers(step, slot, 1, shape=40)))
            if slot or step:
                store.call("push t", one.push("t", step, numbers(step, slot, 2, shape=(4, 2)), IDS))
            store.call("pull", one.pull("w", step + 1))
            store.call("pull t", one.pull("t", step + 1, np.array([2, 3, 4])))
            store.call("end", one.barrier(step, [] if slot or step else ["t"]))
            store.happen(4)
        if step:
            store.cut(1, 0)
        store.end()
    store.call("w", store.stores[0].pull("w", 2))
    return store


def sums_of_many_slots(fault: MemoryFault) -> Faulty:
    """Of six, of which one has nothing: they are added early."""
    store = Faulty(described(key_of("w", [40], 6), slots=6), fault, ShardCore)
    for step in range(2):
        for slot, one in store.stores.items():
            if slot == 3:
                store.call("end", one.barrier(step, ["w"]))
            else:
                store.call("push", one.push("w", step, numbers(step, slot, shape=40)))
            if slot == 4:
                store.happen(40)
        store.call("pull", store.stores[1].pull("w", step + 1))
        store.end()
    return store


def slots_by_themselves(fault: MemoryFault) -> Faulty:
    keys = key_of("w", [40], 1), given(key_of("v", [24], 1)), table_of("t", [12, 2], 1)
    store = Faulty(described(*keys, slots=1, mode=Mode.ASYNC), fault, ShardCore)
    one = store.stores[0]
    store.call("set v", one.set("v", 0, numbers(1, shape=24)))
    for step in range(2):
        store.call("push", one.push(["w", "v"], step, [numbers(step, 1, shape=40), numbers(step, 2, shape=24)]))
        store.call("pull", one.pull(["w", "v"], step + 1))
        store.call("push t", one.push("t", step, numbers(step, 3, shape=(4, 2)), IDS))
        store.call("settled", one.pull("w", step + 1, settled=True))
        store.call("pull t", one.pull("t", step + 1, np.array([2, 3, 4])))
        store.end()
        store.call("set", one.set("w", step + 1, numbers(step, 4, shape=40)))
    store.call("w", one.pull("w", 2))
    return store


def a_restored_store(fault: MemoryFault) -> Faulty:
    store = Faulty(described(key_of("w", [40], 2), table_of("t", [12, 2], 2)), fault, ShardCore)
    one, ids = store.stores[0], np.array([1, 2, 3])
    store.call("restore", one.push("w", 7, numbers(1, shape=40), kind=PayloadKind.RESTORED))
    store.call("state", one.push("w", 7, numbers(2, shape=40), kind=PayloadKind.RESTORED, array=1))
    store.call("rows", one.push("t", 7, numbers(3, shape=(3, 2)), ids, kind=PayloadKind.RESTORED))
    store.end()
    store.call("state t", one.push("t", 1, numbers(4, shape=(3, 2)), ids, kind=PayloadKind.RESTORED_STATE))
    store.end()
    for slot, each in store.stores.items():
        store.call("push", each.push("w", 7, numbers(slot, 5, shape=40)))
        store.call("push t", each.push("t", 7, numbers(slot, 6, shape=(4, 2)), IDS))
    store.call("w", one.pull("w", 8))
    store.call("t", one.pull("t", 8, np.arange(12)))
    return store


def other_tables(fault: MemoryFault) -> Faulty:
    """One that grows, and one whose every update changes all rows."""
    grows = msgspec.structs.replace(table_of("g", [0, 2], 2), growth=GrowthDescription())
    standard = msgspec.structs.replace(table_of("s", [12, 2], 2), sparse=Sparse.STANDARD)
    store = Faulty(described(grows, standard), fault, ShardCore)
    for step in range(2):
        for slot, one in store.stores.items():
            store.call("push g", one.push("g", step, numbers(step, slot, 1, shape=(4, 2)), IDS + 5 * slot))
            store.call("push s", one.push("s", step, numbers(step, slot, 2, shape=(4, 2)), IDS))
            store.call("pull g", one.pull("g", step + 1, IDS))
            store.call("pull s", one.pull("s", step + 1, np.array([2, 3, 4])))
        store.end()
    return store


@pytest.mark.parametrize(
    ("history", "at_once"),
    [
        (dense_keys_and_rows, True),
        (in_shared_memory, False),
        (committed_steps, False),
        (sums_of_many_slots, False),
        (slots_by_themselves, True),
        (a_restored_store, True),
        (other_tables, False),
    ],
)
def test_memory_that_fails_once_ends_the_job_with_words_or_changes_nothing(
    history: Callable[[MemoryFault], Faulty], at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`at_once`: what is small is merged where it comes in."""
    monkeypatch.setattr(bucket_module, "ADDED_EARLY_BYTES", 32)
    monkeypatch.setattr(SharedMemory, "least_bytes", 1)
    if not at_once:
        monkeypatch.setattr(merger_module, "AT_ONCE_BYTES", 0)
    monkeypatch.setattr("secrets.randbits", lambda _: 7)  # By which a growing table places rows.
    for line, store, expected in each_fault(history):
        has_failed = store.shards[0].job is None
        for (name, value), (_, told) in zip(expected, store.outcomes(), strict=False):  # It may lack the capture.
            if isinstance(told, Exception):
                assert isinstance(told, StoreLostError), (line, name, told)
                assert has_failed, (line, name, told)
                assert NO_ROOM in str(told), (line, name, told)
            else:
                assert told == value, (line, name)
        assert not store.leaks(), line
