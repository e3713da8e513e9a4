"""How a key is cut into slices: by its shape, its dtype and the job's slice size alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft_kvstore.description.records import KeyDescription


@dataclass(frozen=True, slots=True)
class KeySlices:
    """The cut of one key: `count` slices of `step_bytes` bytes each, the last one of what is left."""

    nbytes: int
    step_bytes: int
    count: int

    def start(self, index: int) -> int:
        """Where slice `index` begins in the key's value, bytes; for index = count where the last one ends."""
        return min(index * self.step_bytes, self.nbytes)

    def length(self, first: int, count: int = 1) -> int:
        """Bytes of `count` adjacent slices."""
        return self.start(first + count) - self.start(first)


def slices_of(key: KeyDescription, slice_bytes: int) -> KeySlices:
    """The cut of a key: whole elements, at least one to a slice; none for an empty value, nor for a table."""
    itemsize = np.dtype(key.dtype).itemsize
    step = max(slice_bytes // itemsize, 1) * itemsize
    nbytes = 0 if key.rows else key.nbytes
    return KeySlices(nbytes, step, -(-nbytes // step))
