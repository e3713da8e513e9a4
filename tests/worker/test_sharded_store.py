"""The store of a job's shards as a run calls it: by the names of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import WAIT_S, key_of, store_of, table_of
from weft_kvstore.arrays import Array
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.local import LocalStore
from weft_worker.sharded_store import ShardedStore


@pytest.fixture
def store() -> Iterator[ShardedStore]:
    keys = [key_of("w", (4,), 2), table_of("t", (9, 2), 2), key_of("#5", (3,), 2)]
    still = msgspec.structs.replace(key_of("still", (4,), 2), slots=(0,))
    description = store_of([*keys, still], slots=2, shards=1)
    with LocalStore(description) as local:
        yield ShardedStore(local.at_slot(1), description, 1)


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def ids(*found: int) -> Array:
    return np.array(found, np.int64)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda store: store.push("v", 0, ones(4)), "slot 1: push of key 'v': the store has no such key"),
        (lambda store: store.pull("v", 0), "slot 1: pull of key 'v': the store has no such key"),
        (lambda store: store.barrier(0, ["v"]), "slot 1: barrier of key 'v': the store has no such key"),
        (lambda store: store.push("still", 0, ones(4)), r"push of key 'still': only slots \[0\] contribute to it"),
        (lambda store: store.push("w", 0, ones(5)), r"push of key 'w': gradient: it is float32\[5\], the key"),
        (lambda store: store.push(["w"], 0, ones(4)), "push: 1 keys take a list of as many values, not ndarray"),
        (lambda store: store.set("w", 1, np.ones(4)), r"set of key 'w': value: it is float64\[4\], the key"),
        (lambda store: store.pull("w", 0, out=ones(5)), r"pull of key 'w': out: it is float32\[5\], the value"),
        (lambda store: store.pull("t", 0), "pull of key 't': it is a table"),
        (lambda store: store.pull("t", 0, state=True), "pull_state of key 't': it is a table"),
        (lambda store: store.pull("w", 0, ids(1)), "pull_rows of key 'w': it is no table"),
        (lambda store: store.pull("t", 0, ids(9)), "slot 1: pull_rows of key 't': id 9: the table has rows 0 to 8"),
        (lambda store: store.push("t", 0, ones(1, 3), ids(1)), r"push_rows of key 't': rows: it is float32\[1, 3\]"),
    ],
)
def test_what_does_not_fit_the_description_is_refused_by_key(
    store: ShardedStore, call: Callable[[ShardedStore], Any], told: str
) -> None:
    with pytest.raises(StoreRefusedError, match=told):
        call(store)


def test_a_job_may_call_its_keys_as_the_store_calls_numbers(store: ShardedStore) -> None:
    store.push("#5", 0, ones(3)).result(WAIT_S)
    assert store.pull(["w", "#5"], 0).result(WAIT_S)[1].shape == (3,)
