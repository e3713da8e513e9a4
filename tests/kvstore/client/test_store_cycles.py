"""What a client has sent or brought is free when the caller lets go of it, not when the collector comes round."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from same_host_children import wait_until
from store_cluster import WAIT_S, clients_of, key_of, served, store_of
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.errors import StoreError
from weft_kvstore.settings import LinkSettings


@pytest.fixture
def client() -> Iterator[StoreClient]:
    """Of a table of 64 rows and a dense key of 4096 numbers, on two shards; nothing is collected meanwhile."""
    table = msgspec.structs.replace(key_of("table", (64, 32), 1), rows=True)
    store = store_of([table, key_of("w", (4096,), 1)], slots=1, shards=2)
    with served(store) as (description, _), clients_of(description, LinkSettings()) as (made,):
        gc.collect()
        gc.disable()
        try:
            yield made
        finally:
            gc.enable()


def freed(reference: weakref.ref[np.ndarray]) -> bool:
    return reference() is None


@pytest.mark.parametrize("key", ["table", "w"])
def test_what_was_pulled_is_free(client, key):
    ids = np.arange(64, dtype=np.int64)
    future = client.pull_rows(key, ids, 0) if key == "table" else client.pull(key, 0)
    brought = weakref.ref(future.result(WAIT_S))
    assert not freed(brought)
    del future
    client.barrier(0, []).result(WAIT_S)  # the store's thread has gone on to something else
    assert freed(brought)


@pytest.mark.parametrize("key", ["table", "w"])
def test_what_was_pushed_is_free(client, key):
    ids = np.arange(64, dtype=np.int64)
    gradient = np.ones((64, 32) if key == "table" else (4096,), np.float32)
    future = client.push_rows(key, 0, ids, gradient) if key == "table" else client.push(key, 0, gradient)
    future.result(WAIT_S)
    sent = weakref.ref(gradient)
    del future, gradient
    client.barrier(0, []).result(WAIT_S)
    client.barrier(1, []).result(WAIT_S)
    assert freed(sent)


def test_a_client_that_closes_while_a_push_is_open_leaves_the_shards_memory():
    store = store_of([key_of("w", (1 << 16,), 2)], slots=2, shards=1)
    with served(store) as (description, _):
        client = StoreClient(description, 0)
        wait_until(lambda: client.statistics().links[0].same_host)
        gc.collect()
        gc.disable()
        try:
            mapped = weakref.ref(client._core.links[0].peer_memory)
            pushed = client.push("w", 0, client.gradient_buffer("w"))  # The shard reads it once slot 1 has pushed.
            client.close()
            assert isinstance(pushed.exception(0), StoreError)
            assert freed(mapped)
        finally:
            gc.enable()
