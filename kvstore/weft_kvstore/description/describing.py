"""`describe`: a store's description in one Python call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from weft_kvstore.compression.description import StoreCompression
from weft_kvstore.description.check import DescriptionError
from weft_kvstore.description.form import SLICE_BYTES, Key, described
from weft_kvstore.description.key_name import UserKey
from weft_kvstore.description.records import AverageDescription, CommitDescription, StoreDescription


def describe(
    keys: Mapping[UserKey, Any],
    *,
    shards: Sequence[str] = (),
    slots: int = 1,
    rule: str | Mapping[str, Any] | None = None,
    mode: str = "sync",
    staleness: int = 0,
    merge: str = "slot",
    job: str = "store",
    seed: int = 0,
    slice_bytes: int = SLICE_BYTES,
    commit: CommitDescription | None = None,
    average: AverageDescription | None = None,
    compression: StoreCompression | Mapping[str, Any] | None = None,
    barrier: bool = True,
    **hyper: float | Mapping[str, Any],
) -> StoreDescription:
    """A store's description; every process of the store has to be given the same one.

    `keys`: by name or number, the most urgent first; each a `Key`, a shape, or an array, whose shape and dtype the key
    then has (its value is set by `KVStore.init`). `hyper` are the rule's hyper-parameters: numbers, or schedules as
    documents. `shards` are endpoints; a store for one process needs none. The rest: see `DescriptionForm`.

        describe({"weight": Key(shape=(784, 10), initializer={"normal": [0, 0.05]}), "bias": (10,)},
                 shards=["tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556"], slots=2, rule="adam", rate=0.001)

    Raises DescriptionError, which names the field.
    """
    document = {
        "keys": [{"key": _plain(name), **_key(name, key)} for name, key in keys.items()],
        "shards": [shards] if isinstance(shards, str) else list(shards),
        "slots": slots,
        "rule": dict(rule) if isinstance(rule, Mapping) else rule,
        "hyper": hyper,
        "mode": mode,
        "staleness": staleness,
        "merge": merge,
        "job": job,
        "seed": seed,
        "slice_bytes": slice_bytes,
        "commit": commit,
        "average": average,
        "compression": compression,
        "barrier": barrier,
    }
    return described(cast("dict[str, Any]", msgspec.to_builtins(document, enc_hook=_plain)))


def _key(name: UserKey, key: object) -> dict[str, Any]:
    """The key's fields, those that were not given left out."""
    if isinstance(key, Key):
        return cast("dict[str, Any]", msgspec.to_builtins(key, enc_hook=_plain))
    if isinstance(key, tuple | list):
        return {"shape": list(key)}
    shape, dtype = getattr(key, "shape", None), getattr(key, "dtype", None)
    if shape is None or dtype is None:
        raise DescriptionError(f"key {name!r}: a Key, a shape or an array, not {type(key).__name__}")
    return {"shape": [int(extent) for extent in shape], "dtype": str(dtype).removeprefix("torch.")}


def _plain(value: object) -> object:
    """NumPy's number as Python's."""
    return value.item() if isinstance(value, np.integer | np.floating) else value
