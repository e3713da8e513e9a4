"""Rows of tables, as a call of a `KVStore` gives and gets them: ids and arrays, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.client.operation import Check, Ids, RowOperation
from weft_kvstore.client.plan import KeyList, Keys
from weft_kvstore.client.store_client import Store
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.futures import joined, nothing
from weft_kvstore.library.user_arrays import (
    Outs,
    checked,
    checked_ids,
    checked_out,
    flat_ids,
    form_of,
    user_dtype,
)
from weft_kvstore.rows.rows import check_ids
from weft_kvstore.sharding import MOST_ROWS_A_CALL
from weft_kvstore.wire.messages import PayloadKind, Reading

CALL_KINDS: Final[Mapping[str, tuple[PayloadKind | None, bool]]] = {
    "push": (PayloadKind.GRADIENT, False),
    "pushpull": (PayloadKind.GRADIENT, True),
    "pull": (None, True),
    "pull_state": (None, True),
    "set": (PayloadKind.VALUE, False),
    "restore": (PayloadKind.RESTORED, False),
}
"""What a call sends, and whether it pulls."""

MASTER: Final = "weft.master"
"""In a key's state: the float32 value of a key whose users have 16 bits."""


def with_masters(specs: Sequence[KeyDescription], begun: Sequence[Future[Any]]) -> list[Future[Any]]:
    """Each key's state. Behind that of a key whose users have 16 bits comes its float32 value, which is added to it."""
    rest = iter(begun)
    return [
        one if spec.half is None else joined([one, next(rest)], lambda both: {**both[0], MASTER: both[1]})
        for spec, one in zip(specs, rest, strict=True)
    ]


class RowCall:
    """A call of rows of one table, or of a list: of `ids`, with `rows` for them if it sends these. It pulls those of
    the same ids, or of `pull_ids`. `arrays` are to be on the host before it begins: by turns the ids and the rows that
    are sent, then the ids of other rows that are pulled.

    Raises StoreRefusedError for ids and arrays that do not fit."""

    def __init__(  # noqa: PLR0917  # as the calls of rows have it
        self,
        registry: Keys,
        store: Store,
        call: str,
        key: object,
        ids: Any,
        rows: Any = None,
        out: Any = None,
        pull_ids: Any = None,
    ) -> None:
        self.name, self._registry, self._store = call, registry, store
        self.kind, self._pulls = CALL_KINDS[call.removesuffix("_rows")]
        self._of_state = call == "pull_state_rows"
        pushes = self.kind is PayloadKind.GRADIENT
        if pull_ids is ids:  # They travel once.
            pull_ids = None
        keys = self.keys = registry.key_list(key, call, rows=True, pushes=pushes)
        each = map(partial(registry.each, call, keys), (ids, rows, out, pull_ids))
        self.tables, self._pulled = list[Table](), list[Table]()
        self.arrays, others = list[Any](), list[Any]()
        delivers = False
        for one, spec, some, values, target, other in zip(keys.user_keys, keys.keys, *each, strict=True):
            own = keys if keys.single else registry.key_list(one, call, rows=True)
            where, grows = registry.where(call, one), spec.growth is not None
            table = pulled = Table(
                own,
                where,
                some,
                target if pull_ids is None else None,
                counts=grows or (self._pulls and pull_ids is None),
            )
            if pull_ids is not None:
                pulled = Table(own, where, other, target, counts=True)
                others.append(pulled.ids)
            self.arrays.append(table.ids)
            if self.kind is not None:
                self.arrays.append(table.checked_rows(values))
            self.tables.append(table)
            self._pulled.append(pulled)
            delivers = delivers or target is not None or spec.half is not None
        self.arrays += others
        self.outs: Outs | None = None
        if delivers and self._pulls and not self._of_state:
            self.outs = [[] if table.out is None else [table.out] for table in self._pulled]

    def begin(
        self,
        numbers: Sequence[int],
        hosts: list[Array],
        *,
        check: Check | None = None,
        reading: Reading = Reading.OWN,
        priority: int = 0,
    ) -> Future[Any]:
        """Begins an operation for each table. All are checked before any is begun: of a call that does not fit, nothing
        begins."""
        made = list[RowOperation]()
        for at, (number, table, pulled) in enumerate(zip(numbers, self.tables, self._pulled, strict=True)):
            ids = rows = wanted = None
            if self.kind is not None:
                wanted = ids = table.checked_ids(hosts[2 * at])
                rows = hosts[2 * at + 1].astype(table.dtype, copy=False)
            if self._pulls and (self.kind is None or pulled is not table):
                distinct, before_padding = pulled.checked_ids(hosts[at - len(numbers)])
                wanted = distinct.copy(), before_padding
            make = partial(
                RowOperation,
                table.keys,
                payload_kind=self.kind,
                step=number,
                arrays=rows,
                ids=ids,
                version=(number if self.kind is None else number + 1) if self._pulls else None,
                reading=reading,
                wanted=wanted,
                shape=pulled.shape,
                priority=priority,
            )
            if not self._of_state:
                made.append(make(check=check))
                continue
            made.append(make(names=self._registry.state_of(table.spec)))
            if table.spec.half is not None:
                made.append(make())
        futures: list[Future[Any]] = [*map(self._store.submit, made)]
        if self._of_state:
            futures = with_masters(self.keys.keys, futures)
        return futures[0] if self.keys.single else joined(futures, list if self._pulls else nothing)


class Table:
    """A table of a call. Its `ids` are checked at once, those of a GPU once they are on the host: `shape` is that of
    their rows. `out` is an array for these, as it was given and as it is written. Where it `counts` them, there may be
    no more than a call may have."""

    def __init__(self, keys: KeyList, where: str, ids: Any, out: Any, *, counts: bool) -> None:
        (self.spec,), (self.dtype,) = keys.keys, keys.dtypes
        self.keys, self.where = keys, where
        if type(ids) is not np.ndarray or ids.dtype != np.int64 or not ids.size:
            ids = checked_ids(ids, where)
        self.ids, is_here = ids, isinstance(ids, np.ndarray)
        self._checked = self._check(ids) if is_here else None
        leading = ids.shape if is_here else form_of(ids)[1]
        self.shape = (*leading, *self.spec.shape[1:])
        self.out = None if out is None else (out, checked_out(out, user_dtype(self.spec), self.shape, where))
        if counts and (count := math.prod(leading)) > MOST_ROWS_A_CALL:
            raise StoreRefusedError(f"{where}: {count} rows; a call may have {MOST_ROWS_A_CALL}")

    def checked_rows(self, rows: Any) -> Any:
        """Rows that are sent. Raises StoreRefusedError."""
        is_plain = type(rows) is np.ndarray and self.spec.half is None and rows.flags.c_contiguous
        if is_plain and rows.dtype == self.dtype and rows.shape == self.shape:
            return rows
        return checked(rows, user_dtype(self.spec), self.shape, f"{self.where}: rows", "the ids take")

    def checked_ids(self, ids: Array) -> Ids:
        """The ids, once they are on the host. Raises StoreRefusedError for an id that the table cannot have."""
        return self._checked or self._check(ids)

    def _check(self, ids: Array) -> Ids:
        flat = ids
        if ids.ndim != 1 or ids.dtype != np.int64 or not ids.flags.c_contiguous:
            flat = flat_ids(ids, self.where, any_64_bits=self.spec.growth is not None)
        return flat, check_ids(flat, self.spec, self.where)
