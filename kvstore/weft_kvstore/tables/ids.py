"""Ids of a table's rows as a caller hands them over. Pure.

Ids of a table of fixed size are int64. Those of a growing one may be int64 or uint64: a negative int64 is padding, as
everywhere, and 2^63 and above are to be had as uint64, of which none is padding. Both name the same rows.
"""

from __future__ import annotations

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.errors import StoreRefusedError


def check_ids(ids: Array, key: KeyDescription, where: str) -> None:
    """Raises StoreRefusedError where these can be no ids of the table."""
    dtypes = [np.int64] if key.growth is None else [np.int64, np.uint64]
    if ids.dtype not in dtypes or ids.ndim != 1:
        wanted = " or ".join(f"{np.dtype(one)}[n]" for one in dtypes)
        raise StoreRefusedError(f"{where}: ids are {ids.dtype}{list(ids.shape)}, not {wanted}")
    if key.growth is None and ids.size and (largest := int(ids.max())) >= key.shape[0]:
        raise StoreRefusedError(f"{where}: row {largest}, the table has {key.shape[0]}")
