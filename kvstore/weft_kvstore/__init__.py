"""The key-value store: shards that keep parameters and update them, clients that push gradients and pull values.

    from weft_kvstore import Key, KVStore, describe

    description = describe({"w": Key(shape=(3,), initializer=0.0)}, rule="sgd", lr=0.1)
    with KVStore.local(description) as store:
        print(store.pushpull("w", [1, 2, 3]).result())

`KVStore` is one slot's way to a store, `describe` and `read_description` say what the store is. Names are imported when
they are first used, so that a process loads only the modules that it uses.

What a `pushpull` of a small key does, in the order of the files to read:

1. `library/kvstore`: `KVStore.pushpull` finds the key, checks the array and takes the next step (`library/calls`).
2. Its `KeyCall` makes a `KeyOperation` (`client/operation`) with a future, which the store begins
   (`client/store_client`). `client/plan` says which slices of the key are on which shard; `sharding` has computed that
   from the description.
3. `client/poller` runs the client on the caller's thread: `ClientCore.begin` (`client/core`) puts the gradient's slices
   into the outbox of each shard's link, and `client/link` makes a frame of them, with the pull. `wire/outbox` chooses
   what is sent next, `wire/messages` and `wire/codec` say how, `client/sockets` sends it.
4. `serving/shard_server`: the shard's thread receives the frame; `shard/core` says what each message does.
5. `shard/merger` passes gradients to their bucket (`bucket/bucket`), or table (`tables`). Once every slot has
   pushed the step, `bucket/update` adds them up (`bucket/values`) and runs the rule.
6. The pull waits for that version in `bucket/steps`. `shard/peer` has what is to be sent to each client.
7. The caller, which waits for its future, receives the values (`ClientCore.receive`). `KeyOperation.write` copies
   them into `out`, and the future ends (`futures`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft_kvstore.client.store_client import Store
    from weft_kvstore.description.check import CurveKeyError, DescriptionError
    from weft_kvstore.description.form import Key, describe, read_description
    from weft_kvstore.description.records import (
        AverageDescription,
        CommitDescription,
        EvictionDescription,
        GrowthDescription,
        KeyDescription,
        LossScaling,
        Sparse,
        StoreDescription,
    )
    from weft_kvstore.encryption import CurveAuthenticator, CurveKeys, new_curve_keys, read_curve_keys
    from weft_kvstore.errors import (
        StoreClosedError,
        StoreError,
        StoreLostError,
        StorePassedError,
        StoreRefusedError,
        StoreTimeoutError,
    )
    from weft_kvstore.library.kvstore import KVStore
    from weft_kvstore.rows.growing_array import TablePlace
    from weft_kvstore.serving.shard_server import ShardServer
    from weft_kvstore.settings import LinkSettings
    from weft_kvstore.store import ClientStatistics, LinkStatistics, StepOutcome

_NAMES: dict[str, str] = {
    "weft_kvstore.client.store_client": "Store",
    "weft_kvstore.description.check": "CurveKeyError DescriptionError",
    "weft_kvstore.description.form": "Key describe read_description",
    "weft_kvstore.description.records": (
        "AverageDescription CommitDescription EvictionDescription GrowthDescription KeyDescription LossScaling Sparse "
        "StoreDescription"
    ),
    "weft_kvstore.encryption": "CurveAuthenticator CurveKeys new_curve_keys read_curve_keys",
    "weft_kvstore.errors": (
        "StoreClosedError StoreError StoreLostError StorePassedError StoreRefusedError StoreTimeoutError"
    ),
    "weft_kvstore.library.kvstore": "KVStore",
    "weft_kvstore.rows.growing_array": "TablePlace",
    "weft_kvstore.serving.shard_server": "ShardServer",
    "weft_kvstore.settings": "LinkSettings",
    "weft_kvstore.store": "ClientStatistics LinkStatistics StepOutcome",
}
"""Which module has which public names."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "AverageDescription",
    "ClientStatistics",
    "CommitDescription",
    "CurveAuthenticator",
    "CurveKeyError",
    "CurveKeys",
    "DescriptionError",
    "EvictionDescription",
    "GrowthDescription",
    "KVStore",
    "Key",
    "KeyDescription",
    "LinkSettings",
    "LinkStatistics",
    "LossScaling",
    "ShardServer",
    "Sparse",
    "StepOutcome",
    "Store",
    "StoreClosedError",
    "StoreDescription",
    "StoreError",
    "StoreLostError",
    "StorePassedError",
    "StoreRefusedError",
    "StoreTimeoutError",
    "TablePlace",
    "describe",
    "new_curve_keys",
    "read_curve_keys",
    "read_description",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'weft_kvstore' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
