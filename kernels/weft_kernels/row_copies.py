"""Rows of (rows, width) arrays written where they belong: each as one item, for NumPy's own indexing goes element by
element and takes twice to four times as long."""

from __future__ import annotations

import numpy as np

from weft_kernels.kernel import Array


def put_rows(array: Array, places: Array, rows: Array) -> None:
    """`array[places] = rows`: `rows` (n, width) go to `places` (n,) int64, from 0, of `array` (rows, width)."""
    row_bytes = array.shape[1] * array.itemsize
    if not row_bytes or not len(places):
        return
    if array.dtype != rows.dtype or not (array.flags.c_contiguous and rows.flags.c_contiguous):
        array[places] = rows
        return
    item = np.dtype((np.void, row_bytes))
    array.reshape(-1).view(item)[places] = rows.reshape(-1).view(item)
