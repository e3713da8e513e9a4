"""By which key a slot that computes nothing learns how far the others are."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.description.records import KeyDescription
from weft_worker.run_store import RunStore


@dataclass(frozen=True, slots=True)
class Pace:
    """A key that the slot trains and that costs little to pull. Of a table one row is pulled: none would not wait."""

    key: str
    rows: bool

    def reached(self, store: RunStore, version: int, *, settled: bool = False) -> Future[Array]:
        """Ends when the key has seen `version` steps; with `settled`, of every slot."""
        return store.pull(self.key, version, np.zeros(1, np.int64) if self.rows else None, settled=settled)


def waiting_ids(ids: Array) -> Array:
    """Ids (n,) whose pull waits for its version. A pull of padding alone would not: one row then stands in its place.

    Nobody reads that row: what is padding is read as zeros.
    """
    if not ids.size or (ids >= 0).any():
        return ids
    waiting = ids.copy()
    waiting[0] = 0
    return waiting


def pace_of(keys: Iterable[KeyDescription]) -> Pace:
    """The one of `keys` of which the fewest bytes are pulled. Raises ValueError where there is none."""
    chosen = min(keys, key=lambda key: (pulled_bytes(key), key.key))
    return Pace(chosen.key, chosen.rows)


def pulled_bytes(key: KeyDescription) -> int:
    """Bytes of the least that can be pulled of the key."""
    return key.row_bytes if key.rows else key.nbytes
