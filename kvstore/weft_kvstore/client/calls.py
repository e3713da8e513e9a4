"""The calls of a store, the same for every store: checked, made an operation, handed to a thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial, wraps
from operator import index
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.client.agreement import BarrierOperation, Change, HyperOperation
from weft_kvstore.client.operation import CALLS, KeyOperation, Operation
from weft_kvstore.client.plan import KeySet, KnownKeys, TableKey
from weft_kvstore.client.row_operation import Ids, RowOperation
from weft_kvstore.description.check import check_description
from weft_kvstore.description.records import Mode, StoreDescription
from weft_kvstore.errors import StoreError, StorePassedError, StoreRefusedError, StoreTimeoutError
from weft_kvstore.futures import Driver, StoreFuture, error_of, joined, on_end
from weft_kvstore.hyper import checked_numbers
from weft_kvstore.process import OwnProcess
from weft_kvstore.rows.rows import check_ids
from weft_kvstore.same_host.arrays import ClientMemory
from weft_kvstore.settings import MAX_STEP
from weft_kvstore.step_outcome import StepOutcome
from weft_kvstore.store import BufferStore, Pulled, Store, joined_pulls
from weft_kvstore.wire.messages import MAX_RUNS, PayloadKind, Reading

MAX_PULLED_ROWS: Final = 1 << 22
"""Rows of one call, at most: a shard holds the ids of what is asked until it can be answered."""

_READING: Final = {False: Reading.OWN, True: Reading.SETTLED}

P = ParamSpec("P")
R = TypeVar("R")


def _checked(
    call: Callable[Concatenate[StoreCalls, P], Future[R]],
) -> Callable[Concatenate[StoreCalls, P], Future[R]]:
    """A call whose arguments may not fit: then its future fails. Raises StoreError in a forked child."""

    @wraps(call)
    def checked(self: StoreCalls, /, *args: P.args, **named: P.kwargs) -> Future[R]:
        self._process.check()
        try:
            return call(self, *args, **named)
        except StoreError as raised:
            error = raised
        except MemoryError as raised:
            keys = "".join([str(one) if isinstance(one, KeySet | TableKey) else f"key {one!r}" for one in args[:1]])
            name = call.__name__.strip("_")
            error = StoreError(f"slot {self._slot}: {name} of {keys}: no memory: {raised}")
        future: StoreFuture[R] = StoreFuture()
        future.set_exception(error)
        return future

    return checked


class StoreCalls(Store, BufferStore):
    """A store that takes many keys in one call, which costs little more than a call of one key. No key may be there
    twice, and none may be a table. One future stands for all; it fails as a whole, by the first key that does.

    `priority` of a call, within `MAX_CALL_PRIORITY`: what a higher one sends goes first, in both directions. Described
    priorities order what is left equal. Every call raises StoreError in a child of the process that made the store.
    What does not fit the description fails the future, with StoreRefusedError, before anything is begun. Who calls
    often looks keys up once, as a `key_set` or a `table`; of these a call checks nothing: arrays are C-contiguous and
    have the keys' dtypes and shapes."""

    _submit: Callable[[Operation], None]
    _driver: Driver | None

    def __init__(self, description: StoreDescription, slot: int) -> None:
        """Who carries out its calls is set by `hand_to`. Raises DescriptionError, ValueError for a slot that
        there is not."""
        check_description(description)
        if isinstance(slot, bool) or not isinstance(slot, int | np.integer) or not 0 <= slot < description.slots:
            raise ValueError(f"slot {slot!r} is not within 0 to {description.slots - 1}")
        self._description = description
        self._slot = slot
        self._keys = KnownKeys(description, slot)
        self._memory = ClientMemory(description.keys)
        self._process = OwnProcess()

    def hand_to(self, submit: Callable[[Operation], None], driver: Driver | None = None) -> None:
        """`submit` is called with each operation that is in order, on the caller's thread; it must not wait, and ends
        the operation's future where nothing can be begun any more. `driver` brings futures to their end, or says who
        must not wait for one."""
        self._submit = submit
        self._driver = driver

    def gradient_buffer(self, key: str) -> Array:
        self._process.check()  # In a child it is the parent's memory, and so may its locks be.
        return self._memory.gradient(self._keys.one(key, "buffer").key_indices[0])

    def value_buffer(self, key: str) -> Array:
        self._process.check()
        return self._memory.value(self._keys.one(key, "buffer").key_indices[0])

    def key_set(self, keys: Sequence[str]) -> KeySet:
        """These keys, looked up once for `push`, `pull` and `pushpull`. Raises StoreRefusedError."""
        return self._keys.many(keys, "pushpull")

    def table(self, key: str) -> TableKey:
        """A table, looked up once for `push_table` and `pull_table`. Raises StoreRefusedError."""
        return self._keys.table(key, "push")

    # --- Values of keys

    def push(
        self, keys: str | Sequence[str] | KeySet, step: int, gradients: Array | Sequence[Array], *, priority: int = 0
    ) -> Future[None]:
        """See `Store.push`; of several keys a gradient each, in their order."""
        if type(keys) is not KeySet:
            return self._send(keys, step, gradients, PayloadKind.GRADIENT, priority=priority)  # type: ignore[arg-type]
        future: StoreFuture[None] = StoreFuture(self._driver)
        self._submit(
            KeyOperation(
                future, keys, payload_kind=PayloadKind.GRADIENT, step=step, arrays=list(gradients), priority=priority
            )
        )
        return future

    def pushpull(
        self,
        keys: KeySet,
        step: int,
        gradients: Sequence[Array],
        *,
        out: list[Array] | None = None,
        single: bool = False,
        priority: int = 0,
    ) -> StoreFuture[Any]:
        """Gradients of `step`, and the values that have seen them, in one message. With `single` it ends with the one
        key's value, else with a list. Where it fails, `arrived` of the future says whether the shards have the
        gradients all the same."""
        future: StoreFuture[Any] = StoreFuture(self._driver)
        self._submit(
            KeyOperation(
                future,
                keys,
                payload_kind=PayloadKind.GRADIENT,
                step=step,
                arrays=gradients,
                version=step + 1,
                out=out,
                single=single,
                priority=priority,
            )
        )
        return future

    def set(self, keys: str | Sequence[str], version: int, values: Array | Sequence[Array]) -> Future[None]:
        """See `Store.set`; of several keys a value each."""
        return self._send(keys, version, values, PayloadKind.VALUE)

    def restore(self, key: str, version: int, array: Array, number: int) -> Future[None]:
        """Make this what a key was at a version: with number 0 its value, and the key is at that version then; else
        state array `number` of its rule, from 1. Only of keys that nobody has pushed, and not where steps are
        committed. Kept, as by `push`."""
        return self._send(key, version, array, PayloadKind.RESTORED, array=number)

    def pull(
        self,
        keys: str | Sequence[str] | KeySet,
        version: int,
        *,
        settled: bool = False,
        exact: bool = False,
        out: Any = None,
        single: bool = False,
        as_kept: bool = False,
        priority: int = 0,
    ) -> Future[Any]:
        """A key's value, or a list of several keys', once each has seen `version` updates; of a `key_set` as by
        `pushpull`. With `out`, an array or one for each key, C-contiguous and of the key's dtype and shape, they are
        written there; it is the store's until the future has ended, and what is in it after a failure is not said.

        `exact`: none is newer; it fails where a key has passed the version. In mode sync alone. `as_kept`: the values
        as the shard has them, however they travel else.
        """
        reading = Reading.EXACT if exact else _READING[settled]
        if type(keys) is KeySet:
            future: StoreFuture[Any] = StoreFuture(self._driver)
            self._submit(
                KeyOperation(future, keys, version=version, reading=reading, out=out, single=single, priority=priority)
            )
            return future
        how = {"version": version, "reading": reading, "as_kept": as_kept, "priority": priority}
        return self._pull(keys, out, lambda parts: [array for part in parts for array in part], how)  # type: ignore[arg-type]

    def pull_versions(
        self,
        keys: Sequence[str],
        version: int,
        *,
        settled: bool = False,
        out: Sequence[Array] | None = None,
        priority: int = 0,
    ) -> Future[Pulled]:
        """The keys' values, and which versions they are at; as by `pull`."""
        how = {"version": version, "reading": _READING[settled], "with_versions": True, "priority": priority}
        return self._pull(keys, out, joined_pulls, how)

    @_checked
    def pull_state(self, key: str, version: int, *, settled: bool = False) -> Future[Mapping[str, Array]]:
        keys = self._keys.one(key, "pull")
        at = self._checked_step(version, f"pull of {keys}")
        names = self._keys.state_of(self._description.keys[keys.key_indices[0]])
        return self._begun(
            KeyOperation(StoreFuture(self._driver), keys, version=at, reading=_READING[settled], names=names)
        )

    @_checked
    def read_consistent(self, keys: Sequence[str]) -> Future[tuple[int, list[Array]]]:
        """Values that the keys had at one version, and which: the newest that can be had, also while others push. In
        mode sync alone. Fails with StorePassedError where keys have passed every version that was tried."""
        known = self._keys.many(keys, "read")
        self._check_sync(f"read of {known} at one version")
        return consistent_read(self, keys, known.versioned, self._driver)

    @_checked
    def _send(
        self,
        names: str | Sequence[str],
        step: int,
        given: Array | Sequence[Array],
        kind: PayloadKind,
        *,
        array: int = 0,
        priority: int = 0,
    ) -> Future[None]:
        call, count, what = CALLS[kind]
        keys = self._set_of(names, call)
        arrays: list[Array] = [given] if isinstance(names, str) else list(given)  # type: ignore[list-item]
        if type(step) is not int or not 0 <= step < MAX_STEP:
            step = self._checked_step(step, f"{call} of {keys}")
        if kind is PayloadKind.GRADIENT and keys.not_pushed:
            where = f"slot {self._slot}: {call} of key {keys.not_pushed[0].key!r}, {count} {step}"
            raise StoreRefusedError(f"{where}: only slots {list(keys.not_pushed[0].slots)} contribute to it")
        if kind is PayloadKind.RESTORED and self._description.commit is not None:
            where = f"slot {self._slot}: {call} of {keys}, {count} {step}"
            raise StoreRefusedError(f"{where}: steps are committed, and begin at 0")
        self._check_arrays(keys, arrays, f"{call} of", f"{count} {step}", what)
        return self._begun(
            KeyOperation(
                StoreFuture(self._driver),
                keys,
                payload_kind=kind,
                step=step,
                arrays=arrays,
                array=array,
                priority=priority,
            )
        )

    def _pull(
        self, keys: str | Sequence[str], out: Any, join: Callable[[list[Any]], Any], how: Mapping[str, Any]
    ) -> Future[Any]:
        """A pull of more keys than one message may name is several. `how` is of `KeyOperation`."""
        if isinstance(keys, str) or len(keys) <= MAX_RUNS:
            return self._pull_some(keys, out, how)
        parts = [slice(begin, begin + MAX_RUNS) for begin in range(0, len(keys), MAX_RUNS)]
        return joined([self._pull_some(keys[some], None if out is None else out[some], how) for some in parts], join)

    @_checked
    def _pull_some(self, names: str | Sequence[str], out: Any, how: Mapping[str, Any]) -> Future[Any]:
        single, keys, version = isinstance(names, str), self._set_of(names, "pull"), how["version"]
        if type(version) is not int or not 0 <= version < MAX_STEP:
            version = self._checked_step(version, f"pull of {keys}")
        if how["reading"] is Reading.EXACT:
            self._check_sync(f"pull of {keys}, version {version} exactly")
        outs: list[Array] | None = None if out is None else [out] if single else list(out)
        if outs is not None:
            self._check_arrays(keys, outs, "pull of", f"version {version}", "array for it")
            for name, array in zip(keys.names, outs, strict=True):
                if not array.flags.writeable:
                    where = f"slot {self._slot}: pull of key {name!r}, version {version}"
                    raise StoreRefusedError(f"{where}: the array for it is read-only")
        named = {**how, "version": version, "out": outs, "single": single}
        return self._begun(KeyOperation(StoreFuture(self._driver), keys, **named))

    def _begun(self, operation: Operation) -> Future[Any]:
        self._submit(operation)
        return operation.future

    def _set_of(self, names: str | Sequence[str], call: str) -> KeySet:
        return self._keys.one(names, call) if isinstance(names, str) else self._keys.many(names, call)

    def _check_arrays(self, keys: KeySet, arrays: Sequence[Array], call: str, when: str, what: str) -> None:
        """Raises StoreRefusedError for an array that does not fit, naming its key."""
        if keys.fitting(arrays, single=False) is not None:
            return
        if len(arrays) != len(keys):
            raise StoreRefusedError(f"slot {self._slot}: {call} {keys}, {when}: {len(arrays)} arrays")
        for number, array in enumerate(arrays):
            own = keys.described(number)
            if not isinstance(array, np.ndarray):
                found = f"a {type(array).__name__}, no NumPy array"
            elif not array.flags.c_contiguous:
                found = "not C-contiguous"
            elif (found := f"{array.dtype}{list(array.shape)}") != own:
                found = f"{found}, the key {own}"
            else:
                continue
            raise StoreRefusedError(
                f"slot {self._slot}: {call} key {keys.names[number]!r}, {when}: the {what} is {found}"
            )

    # --- Rows of tables

    def push_table(
        self,
        table: TableKey,
        step: int,
        sent: Ids,
        rows: Array,
        *,
        kind: PayloadKind = PayloadKind.GRADIENT,
        priority: int = 0,
    ) -> Future[None]:
        """`push_rows`, or `set_rows`, of a `table`. All fits already."""
        future = StoreFuture[None](self._driver)
        self._submit(RowOperation(future, table, payload_kind=kind, step=step, sent=sent, rows=rows, priority=priority))
        return future

    def pushpull_table(
        self,
        table: TableKey,
        step: int,
        sent: Ids,
        rows: Array,
        *,
        wanted: Ids | None = None,
        shape: tuple[int, ...] | None = None,
        priority: int = 0,
    ) -> Future[Array]:
        """`push_table`, and the rows that have seen it, in one message: those of the same ids, or of `wanted`, as an
        array of that `shape`. As by `pushpull`, `arrived` of the future says whether the shards have the gradients
        where it fails."""
        future, pulled = StoreFuture[Array](self._driver), wanted or sent
        operation = RowOperation(
            future,
            table,
            step=step,
            sent=sent,
            rows=rows,
            version=step + 1,
            wanted=pulled,
            shape=shape,
            priority=priority,
        )
        self._submit(operation)
        return future

    def pull_table(
        self,
        table: TableKey,
        version: int,
        wanted: Ids,
        *,
        settled: bool = False,
        state: bool = False,
        shape: tuple[int, ...] | None = None,
        priority: int = 0,
    ) -> Future[Any]:
        """`pull_rows`, or `pull_state_rows`, of a `table`, as an array of that `shape`, or several. Ids fit already."""
        names = self._keys.state_of(table.key) if state else None
        future, reading = StoreFuture[Any](self._driver), _READING[settled]
        operation = RowOperation(
            future, table, version=version, reading=reading, wanted=wanted, shape=shape, names=names, priority=priority
        )
        self._submit(operation)
        return future

    def push_rows(self, key: str, step: int, ids: Array, rows: Array, *, priority: int = 0) -> Future[None]:
        return self._send_rows(key, step, ids, rows, PayloadKind.GRADIENT, priority=priority)

    def set_rows(self, key: str, version: int, ids: Array, rows: Array) -> Future[None]:
        return self._send_rows(key, version, ids, rows, PayloadKind.VALUE)

    def pull_rows(
        self, key: str, ids: Array, version: int, *, settled: bool = False, priority: int = 0
    ) -> Future[Array]:
        return self._pull_rows(key, ids, version, settled=settled, state=False, priority=priority)

    def pull_state_rows(
        self, key: str, ids: Array, version: int, *, settled: bool = False
    ) -> Future[Mapping[str, Array]]:
        return self._pull_rows(key, ids, version, settled=settled, state=True)

    @_checked
    def _send_rows(
        self, name: str, step: int, ids: Array, rows: Array, kind: PayloadKind, *, priority: int = 0
    ) -> Future[None]:
        call, number, _ = CALLS[kind]
        table = self._keys.table(name, call)
        key, step = table.key, self._checked_step(step, f"{call} of key {name!r}")
        where = f"slot {self._slot}: {call} of key {name!r}, {number} {step}"
        if kind is PayloadKind.GRADIENT and self._slot not in key.slots:
            raise StoreRefusedError(f"{where}: only slots {list(key.slots)} contribute to it")
        count, wanted = check_ids(ids, key, where), (len(ids), *key.shape[1:])
        if rows.dtype != np.dtype(key.dtype) or rows.shape != wanted:
            raise StoreRefusedError(
                f"{where}: the rows are {rows.dtype}{list(rows.shape)}, for {len(ids)} ids {key.dtype}{list(wanted)}"
            )
        return self.push_table(table, step, (ids, count), rows, kind=kind, priority=priority)

    @_checked
    def _pull_rows(self, name: str, ids: Array, version: int, /, **how: Any) -> Future[Any]:
        table = self._keys.table(name, "pull")
        version = self._checked_step(version, f"pull of rows of key {name!r}")
        where = f"slot {self._slot}: pull of rows of key {name!r}"
        count = check_ids(ids, table.key, where)
        if len(ids) > MAX_PULLED_ROWS:
            raise StoreRefusedError(f"{where}: {len(ids)} rows; a call may ask for {MAX_PULLED_ROWS}")
        return self.pull_table(table, version, (ids, count), **how)

    # --- What all shards agree on

    @_checked
    def set_hyper(
        self, changes: Mapping[str, float], *, step: int | None = None, key: str | None = None
    ) -> Future[int]:
        """Give the rule's hyper-parameters these numbers from `step` on, for the whole job or for one key; without a
        step, from the first that is possible. The future ends with the step, once it holds on all shards.

        They take the place of numbers and schedules, and are multiplied by a key's multipliers. What was changed for a
        key stands before what was changed for all. No slot may have pushed, or declared, anything of the step, or it is
        refused, and so it is while another slot changes some: then nothing has changed. Where steps are each slot's
        own, so is the step here. After a StoreTimeoutError or a StoreLostError it may hold or not, but on all shards
        alike.
        """
        known = None if key is None else self._keys.known(key, "set_hyper")
        try:
            numbers = checked_numbers(self._description, known, changes)
        except ValueError as error:
            where = f"slot {self._slot}: set_hyper{'' if key is None else f' of key {key!r}'}"
            raise StoreRefusedError(f"{where}: {error}") from None
        first = None if step is None else self._checked_step(step, "set_hyper")
        change = Change(numbers, first, None if key is None else self._keys.key_indices[key], key)
        return self._begun(HyperOperation(StoreFuture(self._driver), change, lambda: os.urandom(16)))

    @_checked
    def barrier(self, step: int, nothing: Sequence[str]) -> Future[StepOutcome | None]:
        number = self._checked_step(step, "barrier")
        for name in nothing:
            key = self._keys.known(name, "barrier")
            if self._slot not in key.slots:
                detail = f"slot {self._slot}: barrier of step {number}: key {name!r}"
                raise StoreRefusedError(f"{detail}: only slots {list(key.slots)} contribute to it")
        key_indices, commits = [self._keys.key_indices[name] for name in nothing], self._description.commit is not None
        return self._begun(BarrierOperation(StoreFuture(self._driver), number, key_indices, commits=commits))

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
            detail = f"step or version {step!r} is no whole number"
            raise StoreRefusedError(f"slot {self._slot}: {what}: {detail}") from None
        if not 0 <= number < MAX_STEP:
            raise StoreRefusedError(f"slot {self._slot}: {what}: step or version {number} is not within 0 to 2**62")
        return number


# --- Reads several keys at one version while others push --------------------------------------------------------------
# It waits for nothing: it goes on where one of its pulls ends.


TRIES: Final = 8
"""Pulls at one version. The first is at the newest that was seen. Where keys have passed it somebody trains, and each
further one asks for a version further ahead, until the keys reach it later than the pull does."""


def consistent_read(
    source: StoreCalls, keys: Sequence[str], versioned: Sequence[int], driver: Driver | None = None
) -> Future[tuple[int, list[Array]]]:
    """Ends with the version and the values. `versioned` are the numbers of the keys that have versions: somebody
    contributes to them."""
    future: StoreFuture[tuple[int, list[Array]]] = StoreFuture(driver)

    def pull_newest(tries: int, overdue: StoreTimeoutError | None) -> None:
        on_end(source.pull_versions(keys, 0), partial(pulled_newest, tries, overdue))

    def pulled_newest(tries: int, overdue: StoreTimeoutError | None, ended: Future[Pulled]) -> None:
        error = error_of(ended)
        if error is not None:
            future.set_exception(error)
            return
        pulled = ended.result()
        lowest = min(pulled.lowest[[*versioned]].tolist(), default=0)
        highest = max(pulled.highest[[*versioned]].tolist(), default=0)
        if lowest >= highest:  # All of one version; or there is nothing that has versions.
            future.set_result((highest, pulled.values))
        elif overdue is not None:
            future.set_exception(overdue)
        else:
            target = highest + tries
            on_end(source.pull(keys, target, exact=True), partial(pulled_exact, target, tries + 1))

    def pulled_exact(target: int, tries: int, ended: Future[list[Array]]) -> None:
        error = error_of(ended)
        if error is None:
            future.set_result((target, ended.result()))
        elif isinstance(error, StoreTimeoutError):
            pull_newest(tries, error)  # Perhaps nobody pushes any more: then all are at one version by now.
        elif isinstance(error, StorePassedError) and tries < TRIES:
            pull_newest(tries, None)
        else:
            future.set_exception(error)

    pull_newest(0, None)
    return future
