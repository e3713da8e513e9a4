"""The calls of a `KVStore` on rows of tables: ids and rows checked, counted, brought to the host, and handed over."""

from __future__ import annotations

import math
from concurrent.futures import Future
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.client.calls import Store
from weft_kvstore.client.operation import Ids
from weft_kvstore.client.plan import KeySet
from weft_kvstore.description.form import UserKey
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.futures import joined, nothing
from weft_kvstore.library.arrays import (
    ArrayTraffic,
    as_given,
    checked,
    checked_ids,
    checked_out,
    flat_ids,
    form_of,
    user_dtype,
)
from weft_kvstore.library.key_registry import KeyRegistry, UserKeys
from weft_kvstore.library.steps import SlotSteps, checked_priority
from weft_kvstore.rows.rows import check_ids
from weft_kvstore.sharding import MOST_ROWS_A_CALL
from weft_kvstore.wire.messages import PayloadKind


class RowCalls:
    """The calls of a `KVStore` on rows of tables. `key` is always one table or a list. Ids on a GPU are checked on
    the host: where they do not fit, the future fails, and the step has to be pushed again."""

    def __init__(self, store: Store, registry: KeyRegistry, steps: SlotSteps, traffic: ArrayTraffic) -> None:
        self._store = store
        self._registry = registry
        self._steps = steps
        self._traffic = traffic

    def push_rows(
        self, key: UserKey | UserKeys, ids: Any, rows: Any, *, step: int | None = None, priority: int = 0
    ) -> Future[None]:
        """`push` of rows of a table. `ids` are integers of any shape, `rows` has the shape (...ids, ...row).

        Rows of the same id are added up, and negative ids are padding. A table is pushed once a step; `ids` may be
        empty."""
        call = "push_rows"
        if type(priority) is not int or priority:
            priority = checked_priority(priority, self._registry.call(call))
        sent, names, arrays, _ = self._tables(call, key, ids, rows, sends=True, pushes=True)
        return self._steps.push(call, names, step, arrays, partial(self._send, sent, priority=priority))

    def set_rows(self, key: UserKey | UserKeys, ids: Any, rows: Any, *, version: int) -> Future[None]:
        """`set` of rows of a table; of an id that is there twice the last row counts."""
        call = "set_rows"
        sent, names, arrays, _ = self._tables(call, key, ids, rows, sends=True)
        return self._steps.set(call, names, version, arrays, partial(self._send, sent, kind=PayloadKind.VALUE))

    def restore_rows(
        self, key: UserKey | UserKeys, ids: Any, rows: Any, state: Any = None, *, step: int
    ) -> Future[None]:
        """`restore` of rows of a table: values from `pull_rows`, and state from `pull_state_rows` or None.

        Several calls may restore rows of one table, at the same step. Call it before `restore` of keys that are no
        tables, and wait for it: the other slots wait for those."""
        call = "restore_rows"
        self._steps.check_start(call, step)
        sent, names, arrays, _ = self._tables(call, key, ids, rows, sends=True)
        _, _, _, (states,) = self._registry.listed(call, key, state, rows=True)
        of_state: list[tuple[int, int]] = []
        for number, (one, named) in enumerate(zip(sent, states, strict=True)):
            given = self._registry.state_of_user(named, one.where)
            for array, name in enumerate(self._registry.state_names(one.spec, given, one.where, required=False), 1):
                dtype = np.dtype(one.spec.dtype)
                arrays.append(checked(given[name], dtype, one.shape, f"{one.where}: state {name!r}"))
                of_state.append((number, array))

        def give(steps: list[int], hosts: list[Array]) -> Future[None]:
            """Values first: there is state of rows that are there."""
            begun = [self._send(sent, steps, hosts, kind=PayloadKind.RESTORED)]
            for (number, array), values in zip(of_state, hosts[2 * len(sent) :], strict=True):
                one, kind = sent[number], PayloadKind.RESTORED_STATE
                own = one.checked_ids(hosts[2 * number])
                begun.append(self._store.push(one.table, array, one.kept(values), own, kind=kind))
            return joined(begun, nothing)

        return self._steps.set(call, names, step, arrays, give)

    def pull_rows(
        self,
        key: UserKey | UserKeys,
        ids: Any,
        *,
        version: int | None = None,
        settled: bool = False,
        out: Any = None,
        priority: int = 0,
    ) -> Future[Any]:
        """`pull` of rows of a table, with the shape (...ids, ...row). Ids may repeat; a negative id gives zeros."""
        call = "pull_rows"
        if type(priority) is not int or priority:
            priority = checked_priority(priority, self._registry.call(call))
        wanted, names, arrays, single = self._tables(call, key, ids, out=out, pulls=True)
        pull = partial(self._pull_rows, wanted, settled=settled, priority=priority, single=single)
        return self._deliver(call, wanted, self._steps.pull(call, names, version, arrays, pull), single=single)

    def pull_state_rows(
        self, key: UserKey | UserKeys, ids: Any, *, version: int | None = None, settled: bool = False
    ) -> Future[Any]:
        """`pull_state` of rows of a table, shaped as by `pull_rows`."""
        call = "pull_state_rows"
        wanted, names, arrays, single = self._tables(call, key, ids, pulls=True)
        pull = partial(self._pull_rows, wanted, settled=settled, state=True, single=single)
        return self._steps.pull(call, names, version, arrays, pull)

    def pushpull_rows(
        self,
        key: UserKey | UserKeys,
        ids: Any,
        rows: Any,
        pull_ids: Any = None,
        *,
        step: int | None = None,
        out: Any = None,
        priority: int = 0,
    ) -> Future[Any]:
        """`push_rows`, then `pull_rows` of the version that includes it, in one message.

        The result are the new rows of `ids`, or of `pull_ids`, such as those of the next batch."""
        call = "pushpull_rows"
        if type(priority) is not int or priority:
            priority = checked_priority(priority, self._registry.call(call))
        is_same = pull_ids is None
        sent, names, arrays, single = self._tables(
            call, key, ids, rows, out if is_same else None, sends=True, pushes=True, pulls=is_same
        )
        wanted, others = sent, list[Any]()
        if not is_same:
            wanted, _, others, _ = self._tables(call, key, pull_ids, out=out, pulls=True)

        def send(steps: list[int], hosts: list[Array]) -> Future[Any]:
            pushed = _ids_and_rows(sent, hosts)
            ids = (
                [None] * len(sent)
                if is_same
                else [one.checked_ids(h) for one, h in zip(wanted, hosts[2 * len(sent) :], strict=True)]
            )
            begun = [
                self._store.pushpull(one.table, at, kept, own, wanted=asked, shape=pulled.shape, priority=priority)
                for one, pulled, at, (own, kept), asked in zip(sent, wanted, steps, pushed, ids, strict=True)
            ]
            return begun[0] if single else joined(begun, list)

        found = self._steps.pushpull(call, names, step, arrays + others, send)
        if found is None:  # A push has failed, or is not on the host yet: one after the other.
            pushed = self._steps.push(call, names, step, arrays, partial(self._send, sent, priority=priority))
            pull = partial(self._pull_rows, wanted, priority=priority, single=single)
            version = None if step is None else step + 1
            pulled = self._steps.pull(call, names, version, others or arrays[::2], pull)
            found = joined([pulled, pushed], itemgetter(0))
        return self._deliver(call, wanted, found, single=single)

    def _tables(
        self,
        call: str,
        key: object,
        ids: Any,
        rows: Any = None,
        out: Any = None,
        *,
        sends: bool = False,
        pushes: bool = False,
        pulls: bool = False,
    ) -> tuple[list[_Table], list[str], list[Any], bool]:
        """The tables of a call and their names; the arrays that have to be on the host, which are by turns the ids and
        the rows of each where it `sends`, else the ids; whether one key was given."""
        single, keys, specs, (all_ids, all_rows, outs) = self._registry.listed(
            call, key, ids, rows, out, rows=True, pushes=pushes
        )
        tables: list[_Table] = []
        arrays: list[Any] = []
        names: list[str] = []
        for one, spec, some, values, target in zip(keys, specs, all_ids, all_rows, outs, strict=True):
            where = f"slot {self._registry.slot}: {call} of key {one!r}"
            table = _Table(self._store.table(spec.key), where, some, target)
            tables.append(table)
            names.append(spec.key)
            arrays.append(table.ids)
            if sends:
                arrays.append(table.checked_rows(values))
            if pulls or spec.growth is not None:
                count = math.prod(table.shape[: len(table.shape) - len(spec.shape) + 1])
                if count > MOST_ROWS_A_CALL:
                    raise StoreRefusedError(f"{where}: {count} rows; a call may have {MOST_ROWS_A_CALL}")
        return tables, names, arrays, single

    def _send(
        self,
        sent: list[_Table],
        steps: list[int],
        hosts: list[Array],
        *,
        kind: PayloadKind = PayloadKind.GRADIENT,
        priority: int = 0,
    ) -> Future[None]:
        begun = [
            self._store.push(one.table, step, kept, own, kind=kind, priority=priority)
            for one, step, (own, kept) in zip(sent, steps, _ids_and_rows(sent, hosts), strict=True)
        ]
        return begun[0] if len(begun) == 1 else joined(begun, nothing)

    def _pull_rows(
        self,
        wanted: list[_Table],
        versions: list[int],
        hosts: list[Array],
        *,
        single: bool,
        settled: bool = False,
        state: bool = False,
        priority: int = 0,
    ) -> Future[Any]:
        """Rows, or the rule's `state` of them."""
        pulled = [
            self._store.pull(
                one.table, at, one.checked_ids(ids), settled=settled, state=state, shape=one.shape, priority=priority
            )
            for one, at, ids in zip(wanted, versions, hosts, strict=True)
        ]
        return pulled[0] if single else joined(pulled, list)

    def _deliver(self, call: str, wanted: list[_Table], found: Future[Any], *, single: bool) -> Future[Any]:
        """Rows in the types that users have, and in the arrays that they have given for them."""
        for one in wanted:  # A loop, as a generator would be a frame of its own for each.
            if one.out is not None or one.spec.half:
                break
        else:
            return found
        specs = [one.spec for one in wanted]
        given = joined([found], lambda values: as_given(specs, values if single else values[0]))
        names = [spec.key for spec in specs]
        outs = [[] if one.out is None else [one.out] for one in wanted]
        return self._traffic.deliver(self._registry.call(call), names, given, outs, single=single)


class _Table:
    """A table of a call. Its `ids` are checked at once, those of a GPU once they are on the host: `shape` is that of
    their rows. `out` is an array for these, as it was given and as it is written."""

    def __init__(self, table: KeySet, where: str, ids: Any, out: Any) -> None:
        (spec,), (self.dtype,) = table.keys, table.dtypes
        self.table, self.spec, self.where = table, spec, where
        if type(ids) is not np.ndarray or ids.dtype != np.int64 or not ids.size:
            ids = checked_ids(ids, where)
        self.ids, is_here = ids, isinstance(ids, np.ndarray)
        self._checked = self._check(ids) if is_here else None
        self.shape = (*(ids.shape if is_here else form_of(ids)[1]), *spec.shape[1:])
        self.out = None if out is None else (out, checked_out(out, user_dtype(spec), self.shape, where))

    def checked_ids(self, ids: Array) -> Ids:
        """The ids, once they are on the host. Raises StoreRefusedError for an id that the table cannot have."""
        return self._checked or self._check(ids)

    def checked_rows(self, rows: Any) -> Any:
        """Rows that are sent. Raises StoreRefusedError."""
        is_plain = type(rows) is np.ndarray and self.spec.half is None and rows.flags.c_contiguous
        if is_plain and rows.dtype == self.dtype and rows.shape == self.shape:
            return rows
        return checked(rows, user_dtype(self.spec), self.shape, f"{self.where}: rows", "the ids take")

    def kept(self, rows: Array) -> Array:
        """Rows as the shards keep the table."""
        return rows.astype(self.dtype, copy=False)

    def _check(self, ids: Array) -> Ids:
        flat = ids
        if ids.ndim != 1 or ids.dtype != np.int64 or not ids.flags.c_contiguous:
            flat = flat_ids(ids, self.where, any_64_bits=self.spec.growth is not None)
        return flat, check_ids(flat, self.spec, self.where)


def _ids_and_rows(sent: list[_Table], hosts: list[Array]) -> list[tuple[Ids, Array]]:
    """Of each table, all checked before any is sent: of a call that does not fit, nothing begins."""
    return [
        (one.checked_ids(ids), one.kept(rows))
        for one, ids, rows in zip(sent, hosts[::2], hosts[1::2], strict=False)  # Others' ids, or state, may follow.
    ]
