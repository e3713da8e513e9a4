"""First values on a shard: of a run of elements, or of some rows of a table."""

from __future__ import annotations

import numpy as np

from weft_graph.ir import GIVEN, Initializer
from weft_graph.program import Update
from weft_kernels.id_draws import rows_of_ids
from weft_kernels.initializers import first_rows, first_values
from weft_kvstore.arrays.array import Array
from weft_kvstore.description.records import KeyDescription


def is_given(key: KeyDescription) -> bool:
    """Whether the key has no value before one is set."""
    return key.initializer.op_type == GIVEN and key.update is not Update.GRADIENT


def first_elements(key: KeyDescription, seed: int, start: int, stop: int) -> Array:
    """Elements `start` to `stop` of the key's first value. Raises ValueError for an initializer that there is not."""
    dtype = np.dtype(key.dtype)
    if is_given(key) or key.update is Update.GRADIENT:
        return np.zeros(stop - start, dtype)
    return first_values(_initializer(key), seed=seed, key=key.key, start=start, stop=stop, dtype=dtype)


def first_table_rows(key: KeyDescription, seed: int, width: int, rows: Array) -> Array:
    """First values (n, width) of a table's rows (n) int64, or uint64 where it grows. Raises ValueError as above."""
    if key.growth is not None:
        return rows_of_ids(
            _initializer(key), seed=seed, key=key.key, ids=rows.view(np.uint64), width=width, dtype=key.dtype
        )
    return first_rows(_initializer(key), seed=seed, key=key.key, rows=rows, width=width, dtype=np.dtype(key.dtype))


def _initializer(key: KeyDescription) -> Initializer:
    return Initializer(key.initializer.op_type, dict(key.initializer.attributes))
