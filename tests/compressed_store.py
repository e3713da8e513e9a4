"""Stores whose gradients and values travel compressed, and what a plain NumPy program makes of the same gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from store_cluster import constant, key_of, store_of
from weft_graph.program import Update
from weft_kvstore.compression import Codec
from weft_kvstore.description.records import (
    CompressionDescription,
    KeyDescription,
    Kind,
    StoreCompression,
    StoreDescription,
    codecs_of,
)
from weft_kvstore.sharding import codec_of, slices_of

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]

SLOTS = 3
TWO_BIT = CompressionDescription(Kind.TWO_BIT, threshold=0.5)
KINDS = {
    "bf16": CompressionDescription(Kind.BF16),
    "bf16, none kept": CompressionDescription(Kind.BF16, residual=False),
    "fp16": CompressionDescription(Kind.FP16),
    "2bit": TWO_BIT,
    "topk": CompressionDescription(Kind.TOP_K, ratio=0.03),
    "topk, count": CompressionDescription(Kind.TOP_K, count=3),
}
HALF_WEIGHTS = CompressionDescription(Kind.BF16, residual=False)


def merged_key(name: str, shape: tuple[int, ...], slots: int = SLOTS) -> KeyDescription:
    """A key that holds the last step's merged gradient."""
    return msgspec.structs.replace(constant(key_of(name, shape, slots), 0.0), update=Update.GRADIENT)


def compressed_store(
    *, slots: int = SLOTS, shards: int = 2, mode: str = "sync", **setting: CompressionDescription | None
) -> StoreDescription:
    """Two weights of one bucket, one that is whole, one of float64, a small one that travels as it is; a merged one."""
    keys = [
        key_of("w", (90, 17), slots, priority=2),
        key_of("v", (700,), slots, priority=1),
        msgspec.structs.replace(key_of("whole", (40, 30), slots), whole=True),
        msgspec.structs.replace(key_of("double", (300,), slots), dtype="float64"),
        key_of("small", (6,), slots),
    ]
    keys += [merged_key("merged", (1000,), slots)] if mode == "sync" else []
    description = store_of(keys, slots=slots, shards=shards, hyper={"lr": 1.0}, slice_bytes=512)
    compression = StoreCompression(**setting, least_bytes=64)
    return msgspec.structs.replace(
        description, compression=compression, mode=msgspec.convert(mode, type=type(description.mode))
    )


def gradient_of(key: KeyDescription, slot: int, step: int) -> Array:
    """Numbers of which some are beyond the threshold and most are not."""
    generator = np.random.default_rng([slot, step, len(key.key), key.size])
    return (generator.standard_normal(key.shape) * 0.4).astype(key.dtype)


class PlainCodec:
    """A key as one run of its slices, by the codec alone: no store, buckets, shards or frames."""

    def __init__(self, key: KeyDescription, slice_bytes: int, one: CompressionDescription) -> None:
        dtype = np.dtype(key.dtype)
        cut = slices_of(key, slice_bytes)
        self._codec: Codec = codec_of(one, dtype)
        self._bounds = np.array([cut.start(index) // dtype.itemsize for index in range(cut.count + 1)])
        self._residual = np.zeros(key.size, dtype) if one.residual else None

    def sent(self, gradient: Array) -> Array:
        payload = self._codec.encode(gradient.reshape(-1), self._bounds, self._residual)
        return self._codec.decode(payload, self._bounds).reshape(gradient.shape)


class _AsItIs:
    def sent(self, gradient: Array) -> Array:
        return gradient


class PlainTraining:
    """What the values of a store are after each step, and what workers read: one key after the other."""

    def __init__(self, description: StoreDescription, first: Mapping[str, Array]) -> None:
        self.values = {name: value.copy() for name, value in first.items()}
        self.read: dict[str, Array] = {}
        self._description = description
        setting = description.compression
        self._pushed = {
            (key.key, slot): self._sender(key, codecs_of(key, setting)[0])
            for key in description.keys
            for slot in key.slots
        }
        self._pulled = {key.key: self._sender(key, codecs_of(key, setting)[1]) for key in description.keys}

    def step(self, step: int) -> None:
        for key in self._description.keys:
            parts = [self._pushed[key.key, slot].sent(gradient_of(key, slot, step)) for slot in key.slots]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            value = total if key.update is Update.GRADIENT else self.values[key.key] - total
            self.values[key.key] = value
            self.read[key.key] = self._pulled[key.key].sent(value)

    def _sender(self, key: KeyDescription, one: CompressionDescription | None) -> Any:
        return _AsItIs() if one is None else PlainCodec(key, self._description.slice_bytes, one)
