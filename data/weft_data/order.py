"""The order in which a pass reads its rows."""

from __future__ import annotations

from hashlib import sha256

import numpy as np

from weft_data.source import Rows


def sample_order(rows: int, *, seed: int, pass_number: int, shuffle: bool) -> Rows:
    """A permutation of 0 to `rows` - 1 that depends on (rows, seed, pass) alone: an int64 array (rows,).

    A stable argsort of one raw 64-bit Philox draw a row, keyed by SHA-256 of seed and pass. Without `shuffle`, the
    order of the rows. NumPy fixes a bit generator's raw stream, but not what `Generator.permutation` makes of it.
    """
    if not shuffle:
        return np.arange(rows, dtype=np.int64)
    digest = sha256(f"weft-order/{seed}/{pass_number}".encode()).digest()
    key = np.frombuffer(digest, dtype="<u8", count=2).astype(np.uint64)
    draws = np.random.Philox(key=key).random_raw(rows)
    return np.argsort(draws, kind="stable").astype(np.int64, copy=False)
