"""Which shard has a row of a growing table: a function of the id and the number of shards alone."""

from __future__ import annotations

from typing import Final

import numpy as np

from weft_kernels.id_draws import mixed
from weft_kvstore.arrays.array import Array

_APART: Final = np.uint64(0x5851F42D4C957F2D)
"""Keeps this hash apart from that of a shard's own index."""


def shard_of(ids: Array, shards: int) -> Array:
    """The shards (n) int64 of ids (n) uint64, evenly spread whatever the ids are.

    The upper half of the hash, times the number of shards, over 2^32: Lemire, "Fast random integer generation in an
    interval", 2019.
    """
    if shards == 1:
        return np.zeros(len(ids), np.int64)
    hashes = mixed(ids ^ _APART)
    hashes >>= np.uint64(32)
    hashes *= np.uint64(shards)
    hashes >>= np.uint64(32)
    return hashes.view(np.int64)
