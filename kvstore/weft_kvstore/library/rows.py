"""Rows of tables, as a call of a `KVStore` gives and gets them: ids and arrays, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.client.calls import Store, StoreCall
from weft_kvstore.client.operation import Ids
from weft_kvstore.client.plan import KeySet
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.library.arrays import (
    Outs,
    checked,
    checked_ids,
    checked_out,
    flat_ids,
    form_of,
    user_dtype,
)
from weft_kvstore.library.key_registry import KeyRegistry
from weft_kvstore.rows.rows import check_ids
from weft_kvstore.sharding import MOST_ROWS_A_CALL

NOT_SENT: Final = object()
"""Instead of rows: a call has none."""


class TableRows:
    """A call of rows of one table, or of a list: of `ids`, with `rows` for them if these are sent. Those of the same
    ids, or of another call's (see `then_pull`), are pulled. `arrays` are to be on the host before it begins: by turns
    the ids and the rows that are sent, then the ids of other rows that are wanted; before a pull alone `pull_arrays`.

    Raises StoreRefusedError for ids and arrays that do not fit."""

    def __init__(  # noqa: PLR0917  # as the calls of rows have it
        self,
        registry: KeyRegistry,
        store: Store,
        call: str,
        key: object,
        ids: Any,
        rows: Any = NOT_SENT,
        out: Any = None,
        *,
        pulls: bool = False,
    ) -> None:
        self.call, self._sends = call, rows is not NOT_SENT
        given = (ids, rows, out) if self._sends else (ids, None, out)
        pushes = self._sends and call.startswith("push")
        self.single, keys, self.specs, each = registry.listed(call, key, *given, rows=True, pushes=pushes)
        self.names, self.tables = list[str](), list[Table]()
        self.arrays, self.pull_arrays = list[Any](), list[Any]()
        self.outs: Outs | None = None
        delivers = False
        for one, spec, some, values, target in zip(keys, self.specs, *each, strict=True):
            table = Table(store.table(spec.key), registry.where(call, one), some, target)
            if self._sends:
                self.arrays += [table.ids, table.checked_rows(values)]
            if pulls or spec.growth is not None:
                table.check_count()
            self.names.append(spec.key)
            self.tables.append(table)
            self.pull_arrays.append(table.ids)
            delivers = delivers or table.out is not None or spec.half is not None
        if pulls and delivers:
            self.outs = [[] if table.out is None else [table.out] for table in self.tables]
        self._wanted = self.tables

    def then_pull(self, other: TableRows) -> TableRows:
        """With the rows of another call as those that are pulled."""
        self._wanted, self.pull_arrays, self.outs = other.tables, other.pull_arrays, other.outs
        self.arrays += other.pull_arrays
        return self

    def calls(
        self, numbers: Sequence[int], hosts: list[Array], *, sends: bool = True, apart: bool = True
    ) -> list[StoreCall]:
        """A call for each table. All are checked before any is begun: of a call that does not fit, nothing begins."""
        sends, found = sends and self._sends, []
        others = hosts[2 * len(self.tables) :] if sends else hosts
        for at, (number, table, wanted) in enumerate(zip(numbers, self.tables, self._wanted, strict=True)):
            own = rows = pulled = None
            if sends:
                own, rows = table.checked_ids(hosts[2 * at]), table.kept(hosts[2 * at + 1])
            if not sends or wanted is not table:  # Else those that are sent.
                pulled = wanted.checked_ids(others[at])
            found.append(StoreCall(table.table, number, (at,), rows, own, pulled, None, wanted.shape))
        return found


class Table:
    """A table of a call. Its `ids` are checked at once, those of a GPU once they are on the host: `shape` is that of
    their rows. `out` is an array for these, as it was given and as it is written."""

    def __init__(self, table: KeySet, where: str, ids: Any, out: Any) -> None:
        (self.spec,), (self._dtype,) = table.keys, table.dtypes
        self.table, self.where = table, where
        if type(ids) is not np.ndarray or ids.dtype != np.int64 or not ids.size:
            ids = checked_ids(ids, where)
        self.ids, is_here = ids, isinstance(ids, np.ndarray)
        self._checked = self._check(ids) if is_here else None
        self._leading = ids.shape if is_here else form_of(ids)[1]
        self.shape = (*self._leading, *self.spec.shape[1:])
        self.out = None if out is None else (out, checked_out(out, user_dtype(self.spec), self.shape, where))

    def check_count(self) -> None:
        """Raises StoreRefusedError where there are more rows than a call may have."""
        if (count := math.prod(self._leading)) > MOST_ROWS_A_CALL:
            raise StoreRefusedError(f"{self.where}: {count} rows; a call may have {MOST_ROWS_A_CALL}")

    def checked_rows(self, rows: Any) -> Any:
        """Rows that are sent. Raises StoreRefusedError."""
        is_plain = type(rows) is np.ndarray and self.spec.half is None and rows.flags.c_contiguous
        if is_plain and rows.dtype == self._dtype and rows.shape == self.shape:
            return rows
        return checked(rows, user_dtype(self.spec), self.shape, f"{self.where}: rows", "the ids take")

    def checked_ids(self, ids: Array) -> Ids:
        """The ids, once they are on the host. Raises StoreRefusedError for an id that the table cannot have."""
        return self._checked or self._check(ids)

    def kept(self, rows: Array) -> Array:
        """Rows as the shards keep the table."""
        return rows.astype(self._dtype, copy=False)

    def _check(self, ids: Array) -> Ids:
        flat = ids
        if ids.ndim != 1 or ids.dtype != np.int64 or not ids.flags.c_contiguous:
            flat = flat_ids(ids, self.where, any_64_bits=self.spec.growth is not None)
        return flat, check_ids(flat, self.spec, self.where)
