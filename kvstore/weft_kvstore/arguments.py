"""What a caller hands to a store, checked against the description before anything is begun."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

import numpy as np

from weft_graph.program import Update
from weft_kvstore.calls import Asked, Sent
from weft_kvstore.cargo import Cargo
from weft_kvstore.check import check_description, rule_of
from weft_kvstore.commit_operation import CommitOperation
from weft_kvstore.description import KeyDescription, StoreDescription
from weft_kvstore.operation import BarrierOperation, KeyPull, PushOperation
from weft_kvstore.routing import slices_of
from weft_kvstore.row_cut import RowCut, row_cut
from weft_kvstore.row_operation import PullRowsOperation, PushRowsOperation
from weft_kvstore.rows import last_rows, summed_rows
from weft_kvstore.store import Array, StoreRefusedError

MAX_PULLED_ROWS: Final = 1 << 22
"""Rows of one call, at most: a shard holds the ids of what is asked until it can be answered."""

_WORDS: Final = {Cargo.GRADIENT: ("push", "step", "gradient"), Cargo.VALUE: ("set", "version", "value")}


class Arguments:
    """Makes operations of one slot. Raises DescriptionError, ValueError for a slot that there is not."""

    def __init__(self, description: StoreDescription, slot: int) -> None:
        check_description(description)
        if not 0 <= slot < description.slots:
            raise ValueError(f"slot {slot} is not within 0 to {description.slots - 1}")
        self._description = description
        self._slot = slot
        self._places = {key.key: place for place, key in enumerate(description.keys)}
        self._state = tuple(rule_of(description).state)

    def push(self, future: Future[Any], name: str, step: int, array: Array, *, cargo: Cargo) -> PushOperation:
        """Raises StoreRefusedError for a key, step or array that does not fit."""
        what = _WORDS[cargo][2]
        key, where = self._sent_to(name, step, cargo, rows=False)
        if array.dtype != np.dtype(key.dtype) or array.shape != tuple(key.shape):
            raise StoreRefusedError(
                f"{where}: the {what} is {array.dtype}{list(array.shape)}, the key {key.dtype}{list(key.shape)}"
            )
        if not array.flags.c_contiguous:
            raise StoreRefusedError(f"{where}: the {what} is not C-contiguous")
        return PushOperation(future, Sent(cargo, name, self._places[name], step, key.priority), array)

    def push_rows(
        self, future: Future[Any], name: str, step: int, ids: Array, rows: Array, *, cargo: Cargo
    ) -> PushRowsOperation:
        """Raises StoreRefusedError for a key, step, ids or rows that do not fit."""
        key, where = self._sent_to(name, step, cargo, rows=True)
        _check_ids(ids, key, where)
        wanted = (len(ids), *key.shape[1:])
        if rows.dtype != np.dtype(key.dtype) or rows.shape != wanted:
            raise StoreRefusedError(
                f"{where}: the rows are {rows.dtype}{list(rows.shape)}, for {len(ids)} ids {key.dtype}{list(wanted)}"
            )
        flat = rows.reshape(len(ids), self._row_cut(key).width)
        given = summed_rows(ids, flat) if cargo is Cargo.GRADIENT else last_rows(ids, flat)
        return PushRowsOperation(future, Sent(cargo, name, self._places[name], step, key.priority, rows=True), given)

    def pull(self, future: Future[Any], name: str, version: int, *, state: bool, settled: bool) -> KeyPull:
        """Raises StoreRefusedError for a key or version that there is not, MemoryError."""
        key = self._key(name, "pull", rows=False)
        self._check_step(version, f"slot {self._slot}: pull of key {name!r}")
        names = self._state_of(key) if state else None
        cut = slices_of(key, self._description.slice_bytes)
        dtype, shape = np.dtype(key.dtype), tuple(key.shape)
        asked = Asked(name, self._places[name], version, names, settled, key.priority)
        return KeyPull(future, asked, cut=cut, dtype=dtype, shape=shape)

    def pull_rows(
        self, future: Future[Any], name: str, ids: Array, version: int, *, state: bool, settled: bool
    ) -> PullRowsOperation:
        """Raises StoreRefusedError for a key, version or ids that do not fit, MemoryError."""
        key = self._key(name, "pull", rows=True)
        where = f"slot {self._slot}: pull of rows of key {name!r}"
        self._check_step(version, where)
        _check_ids(ids, key, where)
        if len(ids) > MAX_PULLED_ROWS:
            raise StoreRefusedError(f"{where}: {len(ids)} rows; a call may ask for {MAX_PULLED_ROWS}")
        names = self._state_of(key) if state else None
        asked = Asked(name, self._places[name], version, names, settled, key.priority, rows=True)
        cut, shape = self._row_cut(key), tuple(key.shape[1:])
        return PullRowsOperation(future, asked, cut=cut, ids=ids, row_shape=shape)

    def barrier(self, future: Future[Any], step: int, nothing: Sequence[str]) -> BarrierOperation:
        """Raises StoreRefusedError for a key that there is not or to which the slot does not contribute."""
        where = f"slot {self._slot}: barrier of step {step}"
        self._check_step(step, where)
        for name in nothing:
            key = self._known(name, "barrier")
            if self._slot not in key.slots:
                raise StoreRefusedError(f"{where}: key {name!r}: only slots {list(key.slots)} contribute to it")
        places = [self._places[name] for name in nothing]
        kind = BarrierOperation if self._description.commit is None else CommitOperation
        return kind(future, step, places)

    def _sent_to(self, name: str, step: int, cargo: Cargo, *, rows: bool) -> tuple[KeyDescription, str]:
        call, count, _ = _WORDS[cargo]
        key = self._key(name, call, rows=rows)
        where = f"slot {self._slot}: {call} of key {name!r}, {count} {step}"
        self._check_step(step, where)
        if cargo is Cargo.GRADIENT and self._slot not in key.slots:
            raise StoreRefusedError(f"{where}: only slots {list(key.slots)} contribute to it")
        return key, where

    def _state_of(self, key: KeyDescription) -> tuple[str, ...]:
        return self._state if key.update is Update.RULE else ()

    def _row_cut(self, key: KeyDescription) -> RowCut:
        return row_cut(key, self._description.slice_bytes, len(self._description.shards))

    def _key(self, name: str, call: str, *, rows: bool) -> KeyDescription:
        key = self._known(name, call)
        if key.rows and not rows:
            raise StoreRefusedError(f"slot {self._slot}: {call} of key {name!r}: it is a table, which goes by rows")
        if rows and not key.rows:
            raise StoreRefusedError(f"slot {self._slot}: {call} of rows of key {name!r}: it is no table")
        return key

    def _known(self, name: str, call: str) -> KeyDescription:
        place = self._places.get(name)
        if place is None:
            raise StoreRefusedError(f"slot {self._slot}: {call} of key {name!r}: the store has no such key")
        return self._description.keys[place]

    @staticmethod
    def _check_step(step: int, where: str) -> None:
        if not 0 <= step < 2**62:
            raise StoreRefusedError(f"{where}: step or version {step} is not within 0 to 2**62")


def _check_ids(ids: Array, key: KeyDescription, where: str) -> None:
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise StoreRefusedError(f"{where}: ids are {ids.dtype}{list(ids.shape)}, not int64[n]")
    if ids.size and (largest := int(ids.max())) >= key.shape[0]:
        raise StoreRefusedError(f"{where}: row {largest}, the table has {key.shape[0]}")
