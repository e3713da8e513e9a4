"""A client that is closed leaves the shards' memory, not when the collector comes round."""

from __future__ import annotations

import gc
import weakref

from same_host_children import wait_until
from store_cluster import NamedClient, key_of, served, store_of
from weft_kvstore.errors import StoreError


def test_a_client_that_closes_while_a_push_is_open_leaves_the_shards_memory():
    store = store_of([key_of("w", (1 << 16,), 2)], slots=2, shards=1)
    with served(store) as (description, _):
        client = NamedClient(description, 0)
        wait_until(lambda: client.statistics().links[0].same_host)
        gc.collect()
        gc.disable()
        try:
            mapped = weakref.ref(client._core.links[0].peer_memory)
            pushed = client.push("w", 0, client.own_gradient("w"))  # The shard reads it once slot 1 has pushed.
            client.close()
            assert isinstance(pushed.exception(0), StoreError)
            assert mapped() is None
        finally:
            gc.enable()
