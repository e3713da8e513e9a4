"""What a caller hands to a store, checked against the description before anything is begun."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from operator import index
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.client.agreement import BarrierOperation, Change, CommitOperation, HyperOperation
from weft_kvstore.client.operation import Gives, KeyPull, PushOperation
from weft_kvstore.client.plan import KeySet, KnownKeys, TableKey
from weft_kvstore.client.row_operation import PullRowsOperation, PushRowsOperation
from weft_kvstore.description.check import check_description
from weft_kvstore.description.records import Mode, StoreDescription
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.hyper import checked_numbers
from weft_kvstore.rows.rows import check_ids, last_rows, summed_rows, wanted_rows
from weft_kvstore.wire.messages import PayloadKind, Reading

MAX_PULLED_ROWS: Final = 1 << 22
"""Rows of one call, at most: a shard holds the ids of what is asked until it can be answered."""

MAX_STEP: Final = 1 << 62
"""Steps and versions are below it."""

_WORDS: Final = {
    PayloadKind.GRADIENT: ("push", "step", "gradient"),
    PayloadKind.VALUE: ("set", "version", "value"),
    PayloadKind.RESTORED: ("restore", "version", "array"),
}


class Arguments:
    """Makes operations of one slot. Raises DescriptionError, ValueError for a slot that there is not."""

    def __init__(self, description: StoreDescription, slot: int) -> None:
        check_description(description)
        if not 0 <= slot < description.slots:
            raise ValueError(f"slot {slot} is not within 0 to {description.slots - 1}")
        self._description = description
        self._slot = slot
        self._keys = KnownKeys(description, slot)

    def place_of(self, name: str) -> int:
        """Of a key that is no table, in the description. Raises StoreRefusedError."""
        return self._keys.one(name, "buffer").places[0]

    def key_set(self, names: Sequence[str]) -> KeySet:
        """Keys that the slot pushes. Raises StoreRefusedError."""
        return self._keys.many(names, "pushpull")

    def table(self, name: str) -> TableKey:
        """Raises StoreRefusedError for a key that is none."""
        return self._keys.table(name, "push")

    def push(
        self,
        future: Future[Any],
        names: str | Sequence[str],
        step: int,
        arrays: Any,
        *,
        payload_kind: PayloadKind,
    ) -> PushOperation:
        """One key's array, or several keys'. Raises StoreRefusedError for keys, a step or arrays that do not fit."""
        call, count, what = _WORDS[payload_kind]
        keys = self._set_of(names, call)
        given: list[Array] = [arrays] if isinstance(names, str) else list(arrays)
        if type(step) is not int or not 0 <= step < MAX_STEP:
            step = self._checked_step(step, f"{call} of {keys}")
        if payload_kind is PayloadKind.GRADIENT and keys.others:
            where = f"slot {self._slot}: {call} of key {keys.others[0].key!r}, {count} {step}"
            raise StoreRefusedError(f"{where}: only slots {list(keys.others[0].slots)} contribute to it")
        self._check_arrays(keys, given, call, f"{count} {step}", what)
        return PushOperation(future, payload_kind, keys, step, given)

    def restore(self, future: Future[Any], name: str, version: int, array: Array, number: int) -> PushOperation:
        """Raises StoreRefusedError as `push`, and where a step is of all keys."""
        operation = self.push(future, name, version, array, payload_kind=PayloadKind.RESTORED)
        if self._description.commit is not None:
            raise StoreRefusedError(f"slot {self._slot}: {operation}: steps are committed, and begin at 0")
        operation.array = number
        return operation

    def push_rows(
        self, future: Future[Any], name: str, step: int, ids: Array, rows: Array, *, payload_kind: PayloadKind
    ) -> PushRowsOperation:
        """Raises StoreRefusedError for a key, step, ids or rows that do not fit."""
        table, step, where = self._sent_to(name, step, payload_kind)
        key, count = table.key, check_ids(ids, table.key, where)
        wanted = (len(ids), *key.shape[1:])
        if rows.dtype != np.dtype(key.dtype) or rows.shape != wanted:
            raise StoreRefusedError(
                f"{where}: the rows are {rows.dtype}{list(rows.shape)}, for {len(ids)} ids {key.dtype}{list(wanted)}"
            )
        flat = rows.reshape(len(ids), table.cut.width)
        given = summed_rows(ids, flat, count) if payload_kind is PayloadKind.GRADIENT else last_rows(ids, flat)
        return PushRowsOperation(future, table, payload_kind, step, given)

    def pull(
        self,
        future: Future[Any],
        names: str | Sequence[str],
        version: int,
        *,
        reading: Reading,
        gives: Gives | None = None,
        out: Any = None,
    ) -> KeyPull:
        """One key's value, or several keys', unless `gives` says otherwise. Raises StoreRefusedError for keys, a
        version or arrays that do not fit."""
        single = isinstance(names, str)
        gives = gives or (Gives.VALUE if single else Gives.VALUES)
        keys = self._set_of(names, "pull")
        outs: list[Array] | None = None if out is None else [out] if single else list(out)
        if type(version) is not int or not 0 <= version < MAX_STEP:
            version = self._checked_step(version, f"pull of {keys}")
        if reading is Reading.EXACT:
            self._check_sync(f"pull of {keys}, version {version} exactly")
        if outs is not None:
            self._check_arrays(keys, outs, "pull", f"version {version}", "array for it")
            for name, array in zip(keys.names, outs, strict=True):
                if not array.flags.writeable:
                    where = f"slot {self._slot}: pull of key {name!r}, version {version}"
                    raise StoreRefusedError(f"{where}: the array for it is read-only")
        return KeyPull(future, keys, version, reading=reading, gives=gives, out=outs)

    def pull_state(self, future: Future[Any], name: str, version: int, *, reading: Reading) -> KeyPull:
        """Raises StoreRefusedError for a key or version that there is not."""
        keys = self._keys.one(name, "pull")
        version = self._checked_step(version, f"pull of {keys}")
        names = self._keys.state_of(self._description.keys[keys.places[0]])
        return KeyPull(future, keys, version, reading=reading, gives=Gives.STATE, names=names)

    def pull_rows(
        self, future: Future[Any], name: str, ids: Array, version: int, *, state: bool, reading: Reading
    ) -> PullRowsOperation:
        """Raises StoreRefusedError for a key, version or ids that do not fit, MemoryError."""
        table = self._keys.table(name, "pull")
        version = self._checked_step(version, f"pull of rows of key {name!r}")
        where = f"slot {self._slot}: pull of rows of key {name!r}"
        count = check_ids(ids, table.key, where)
        if len(ids) > MAX_PULLED_ROWS:
            raise StoreRefusedError(f"{where}: {len(ids)} rows; a call may ask for {MAX_PULLED_ROWS}")
        names = self._keys.state_of(table.key) if state else None
        return PullRowsOperation(future, table, version, reading, wanted_rows(ids, count), rows=len(ids), names=names)

    def moving(self, names: Sequence[str]) -> tuple[int, ...]:
        """The numbers of the keys that have versions, for a read of all at one. Raises StoreRefusedError for keys that
        do not fit, and where no version is of all slots."""
        keys = self._keys.many(names, "read")
        self._check_sync(f"read of {keys} at one version")
        return keys.moving

    def barrier(self, future: Future[Any], step: int, nothing: Sequence[str]) -> BarrierOperation:
        """Raises StoreRefusedError for a key that there is not or to which the slot does not contribute."""
        step = self._checked_step(step, "barrier")
        where = f"slot {self._slot}: barrier of step {step}"
        for name in nothing:
            key = self._keys.known(name, "barrier")
            if self._slot not in key.slots:
                raise StoreRefusedError(f"{where}: key {name!r}: only slots {list(key.slots)} contribute to it")
        places = [self._keys.places[name] for name in nothing]
        kind = BarrierOperation if self._description.commit is None else CommitOperation
        return kind(future, step, places)

    def set_hyper(
        self, future: Future[Any], numbers: Mapping[str, float], step: int | None, name: str | None
    ) -> HyperOperation:
        """Raises StoreRefusedError for a key that the shards update by no rule, and for numbers that its rule lacks."""
        key = None if name is None else self._keys.known(name, "set_hyper")
        where = f"slot {self._slot}: set_hyper" if key is None else f"slot {self._slot}: set_hyper of key {name!r}"
        try:
            found = checked_numbers(self._description, key, numbers)
        except ValueError as error:
            raise StoreRefusedError(f"{where}: {error}") from None
        step = None if step is None else self._checked_step(step, "set_hyper")
        place = None if name is None else self._keys.places[name]
        return HyperOperation(future, Change(found, step, place, name), lambda: os.urandom(16))

    def _set_of(self, names: str | Sequence[str], call: str) -> KeySet:
        return self._keys.one(names, call) if isinstance(names, str) else self._keys.many(names, call)

    def _check_arrays(self, keys: KeySet, arrays: Sequence[Array], call: str, when: str, what: str) -> None:
        """Raises StoreRefusedError for an array that does not fit, naming its key."""
        if len(arrays) != len(keys):
            raise StoreRefusedError(f"slot {self._slot}: {call} of {keys}, {when}: {len(arrays)} arrays")
        for number, array in enumerate(arrays):
            if (
                isinstance(array, np.ndarray)
                and array.dtype == keys.dtypes[number]
                and array.shape == keys.shapes[number]
                and array.flags.c_contiguous
            ):
                continue
            where = f"slot {self._slot}: {call} of key {keys.names[number]!r}, {when}: the {what} is"
            if not isinstance(array, np.ndarray):
                raise StoreRefusedError(f"{where} a {type(array).__name__}, no NumPy array")
            if array.flags.c_contiguous:
                own, found = keys.described(number), f"{array.dtype}{list(array.shape)}"
                raise StoreRefusedError(f"{where} {found}, the key {own}")
            raise StoreRefusedError(f"{where} not C-contiguous")

    def _sent_to(self, name: str, step: int, payload_kind: PayloadKind) -> tuple[TableKey, int, str]:
        call, count, _ = _WORDS[payload_kind]
        table = self._keys.table(name, call)
        step = self._checked_step(step, f"{call} of key {name!r}")
        where = f"slot {self._slot}: {call} of key {name!r}, {count} {step}"
        slots = table.key.slots
        if payload_kind is PayloadKind.GRADIENT and self._slot not in slots:
            raise StoreRefusedError(f"{where}: only slots {list(slots)} contribute to it")
        return table, step, where

    def _check_sync(self, what: str) -> None:
        mode = self._description.mode
        if mode is not Mode.SYNC:
            raise StoreRefusedError(
                f"slot {self._slot}: {what}: in mode {mode.value} each slot has versions of its own"
            )

    def _checked_step(self, step: int, what: str) -> int:
        """The step, or version, as the number that it stands for."""
        try:
            number = index(step)
        except TypeError:
            told = f"step or version {step!r} is no whole number"
            raise StoreRefusedError(f"slot {self._slot}: {what}: {told}") from None
        if not 0 <= number < MAX_STEP:
            raise StoreRefusedError(f"slot {self._slot}: {what}: step or version {number} is not within 0 to 2**62")
        return number
