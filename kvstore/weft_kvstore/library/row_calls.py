"""A slot's calls on rows of tables: ids and rows checked, counted, brought to the host, and handed to a `Store`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.description.key_name import user_key
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.library.array_traffic import ArrayTraffic
from weft_kvstore.library.key_book import KeyBook
from weft_kvstore.library.slot_steps import SlotSteps
from weft_kvstore.library.user_array import checked, checked_ids, checked_outs, flat_ids, form_of, is_on_device
from weft_kvstore.operations.arguments import MAX_PULLED_ROWS
from weft_kvstore.runtime.joined_future import joined
from weft_kvstore.store import BulkStore
from weft_kvstore.tables.ids import check_ids


class RowCalls:
    """`key` is always one table or a list, and the future's result has the same form. All raise StoreRefusedError, at
    once, for arguments that do not fit, but for ids on a GPU, which are looked at on the host: that is told by the
    future, and there the step does not count."""

    def __init__(self, store: BulkStore, book: KeyBook, steps: SlotSteps, traffic: ArrayTraffic) -> None:
        self._store = store
        self._book = book
        self._steps = steps
        self._traffic = traffic

    def push(self, key: object, ids: Any, rows: Any, step: int | None) -> Future[None]:
        call = "push_rows"
        specs, given = self._sent(call, key, ids, rows, pushing=True)
        names = [spec.key for spec in specs]

        def begin(steps: list[int], hosts: list[Array]) -> Future[None]:
            parts = self._flat(call, specs, hosts)
            return joined([self._store.push_rows(*one) for one in _calls(names, steps, parts)], _nothing)

        return self._steps.push(call, names, step, given, begin)

    def set(self, key: object, ids: Any, rows: Any, version: int) -> Future[None]:
        call = "set_rows"
        specs, given = self._sent(call, key, ids, rows, pushing=False)
        names = [spec.key for spec in specs]

        def begin(versions: list[int], hosts: list[Array]) -> Future[None]:
            parts = self._flat(call, specs, hosts)
            return joined([self._store.set_rows(*one) for one in _calls(names, versions, parts)], _nothing)

        return self._steps.set(call, names, version, given, begin)

    def pull(self, key: object, ids: Any, out: Any, version: int | None, *, settled: bool) -> Future[Any]:
        call = "pull_rows"
        single, keys, specs, (wanted, outs) = self._book.listed(call, key, ids, out, rows=True)
        given = self._asked(call, keys, wanted)
        shapes = [(*form_of(one)[1], *spec.shape[1:]) for spec, one in zip(specs, given, strict=True)]
        forms = [(np.dtype(spec.dtype), shape) for spec, shape in zip(specs, shapes, strict=True)]
        arrays = checked_outs(outs, forms, lambda number: self._book.where(call, keys[number]))
        names, given = [spec.key for spec in specs], self._seen(call, specs, given)
        versions, guards = self._steps.versions(call, names, version)
        targets = self._traffic.targets(arrays)
        host_outs = [None if number in targets else array for number, array in enumerate(arrays)]

        def begin(hosts: list[Array]) -> Future[list[Array]]:
            flat = self._seen(call, specs, hosts)
            pulled = [
                self._store.pull_rows(name, one, at, settled=settled)
                for name, one, at in zip(names, flat, versions, strict=True)
            ]
            return joined(pulled, lambda values: _shaped(values, shapes, host_outs), guards)

        return self._traffic.delivered(self._traffic.bring(names, given, begin), outs, targets, single=single)

    def pull_state(self, key: object, ids: Any, version: int | None, *, settled: bool) -> Future[Any]:
        call = "pull_state_rows"
        single, keys, specs, (wanted,) = self._book.listed(call, key, ids, rows=True)
        given = self._asked(call, keys, wanted)
        shapes = [(*form_of(one)[1], *spec.shape[1:]) for spec, one in zip(specs, given, strict=True)]
        names, given = [spec.key for spec in specs], self._seen(call, specs, given)
        versions, guards = self._steps.versions(call, names, version)

        def shaped(states: list[Any]) -> Any:
            found = [
                {name: rows.reshape(shape) for name, rows in state.items()}
                for state, shape in zip(states, shapes, strict=True)
            ]
            return found[0] if single else found

        def begin(hosts: list[Array]) -> Future[Any]:
            flat = self._seen(call, specs, hosts)
            pulled = [
                self._store.pull_state_rows(name, one, at, settled=settled)
                for name, one, at in zip(names, flat, versions, strict=True)
            ]
            return joined(pulled, shaped, guards)

        return self._traffic.bring(names, given, begin)

    def _sent(
        self, call: str, key: object, ids: Any, rows: Any, *, pushing: bool
    ) -> tuple[list[KeyDescription], list[Any]]:
        """The tables, and by turns the ids and the rows of each, checked."""
        _, keys, specs, (all_ids, all_rows) = self._book.listed(call, key, ids, rows, rows=True, pushes=pushing)
        given: list[Any] = []
        for one, spec, some, values in zip(keys, specs, all_ids, all_rows, strict=True):
            where = self._book.where(call, one)
            found = checked_ids(some, where)
            shape = (*form_of(found)[1], *spec.shape[1:])
            (seen,) = self._seen(call, [spec], [found])
            given += [seen, checked(values, np.dtype(spec.dtype), shape, f"{where}: rows")]
        return specs, given

    def _asked(self, call: str, keys: Sequence[object], wanted: Sequence[Any]) -> list[Any]:
        """The ids of each table, in the caller's shape."""
        found = [checked_ids(one, self._book.where(call, name)) for name, one in zip(keys, wanted, strict=True)]
        for name, ids in zip(keys, found, strict=True):
            count = math.prod(form_of(ids)[1])
            if count > MAX_PULLED_ROWS:
                told = f"{count} rows; a call may ask for {MAX_PULLED_ROWS}"
                raise StoreRefusedError(f"{self._book.where(call, name)}: {told}")
        return found

    def _flat(self, call: str, specs: Sequence[KeyDescription], hosts: list[Array]) -> list[tuple[Array, Array]]:
        """Ids (n) and rows (n, ...) of each table."""
        all_ids = self._seen(call, specs, hosts[::2])
        return [
            (ids, rows.reshape(len(ids), *spec.shape[1:]))
            for spec, ids, rows in zip(specs, all_ids, hosts[1::2], strict=True)
        ]

    def _seen(self, call: str, specs: Sequence[KeyDescription], all_ids: Sequence[Any]) -> list[Any]:
        """Ids (n) as the tables take them; a GPU's as they are. Raises StoreRefusedError for one that a table cannot
        have."""
        found = []
        for spec, ids in zip(specs, all_ids, strict=True):
            flat = ids
            if not is_on_device(ids):
                where = self._book.where(call, user_key(spec.key))
                flat = flat_ids(ids, where, any_64_bits=spec.growth is not None)
                check_ids(flat, spec, where)
            found.append(flat)
        return found


def _calls(
    names: Sequence[str], numbers: Sequence[int], parts: Sequence[tuple[Array, Array]]
) -> list[tuple[str, int, Array, Array]]:
    """What is handed over of each table."""
    return [(name, number, *part) for name, number, part in zip(names, numbers, parts, strict=True)]


def _shaped(values: list[Array], shapes: Sequence[tuple[int, ...]], outs: Sequence[Array | None]) -> list[Array]:
    """Rows in the shape of the ids that asked for them, in the arrays where they are wanted."""
    found = [value.reshape(shape) for value, shape in zip(values, shapes, strict=True)]
    for value, out in zip(found, outs, strict=True):
        if out is not None:
            np.copyto(out, value)
    return found


def _nothing(_: object) -> None:
    pass
