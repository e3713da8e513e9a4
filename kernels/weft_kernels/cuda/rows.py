"""Rows by number on a GPU, each result summed in order by one thread: see `sources/rows.cu`."""

from __future__ import annotations

from typing import Any, Final

from weft_kernels.cuda.module import has_kernels, launch
from weft_kernels.kernel import Array

_FILE: Final = "rows.cu"


def fits(xp: Any, rows: Array) -> bool:
    """Whether the kernels take rows of this module and element type."""
    return has_kernels(xp) and rows.dtype.kind == "f"


def gather_rows(xp: Any, table: Array, ids: Array) -> Array:
    """Rows `ids` (n,) int64 of `table` (rows, ...), a new array (n, ...); zeros where an id is negative."""
    table, ids = xp.ascontiguousarray(table), xp.ascontiguousarray(ids)
    result: Array = xp.empty((ids.size, *table.shape[1:]), dtype=table.dtype)
    width = result.size // max(ids.size, 1)
    launch(xp, _FILE, "gather_rows", result.size, table, ids, result, ids.size, width, types=(table.dtype,))
    return result


def sum_rows(xp: Any, rows: Array, index: Array, count: int) -> Array:
    """The sum, for each of `count` places, of the rows (n, columns) whose index (n,) names it, in order.

    Sorted and summed by place, not added atomically: the same bits in every run. Rows of a negative index are left out.
    """
    rows = xp.ascontiguousarray(rows)
    order = xp.argsort(index, kind="stable")
    ordered = index[order]
    result: Array = xp.empty((count, rows.shape[1]), dtype=rows.dtype)
    numbers = (1, index.size, count, rows.shape[1])
    launch(xp, _FILE, "sum_rows", result.size, rows, ordered, order, result, *numbers, types=(rows.dtype,))
    return result


def merge_rows(xp: Any, first_ids: Array, first: Array, second_ids: Array, second: Array) -> tuple[Array, Array]:
    """(ids, rows) of two slots' rows: their ids' union, ascending, and the first's row plus the second's.

    Each slot's ids are distinct and ascending. Waits for the device, which alone knows how many ids there are.
    """
    ids = xp.unique(xp.concatenate([first_ids, second_ids]))
    result: Array = xp.empty((ids.size, *first.shape[1:]), dtype=first.dtype)
    width = result.size // max(ids.size, 1)
    first, second = xp.ascontiguousarray(first), xp.ascontiguousarray(second)
    given = (first, first_ids, first_ids.size, second, second_ids, second_ids.size)
    launch(xp, _FILE, "merge_rows", result.size, *given, ids, result, ids.size, width, types=(first.dtype,))
    return ids, result
