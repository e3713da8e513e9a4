"""The calls of a store, the same for every store: checked, made an operation, handed to a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial, wraps
from operator import index
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.client.agreement import BarrierOperation, HyperOperation
from weft_kvstore.client.operation import CALLS, KeyOperation, Operation
from weft_kvstore.client.plan import Keys, KeySet, TableKey
from weft_kvstore.client.row_operation import Ids, RowOperation
from weft_kvstore.description.check import check_description
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreError, StorePassedError, StoreRefusedError, StoreTimeoutError
from weft_kvstore.futures import Driver, StoreFuture, driver_of, error_of, joined, on_end
from weft_kvstore.process import OwnProcess
from weft_kvstore.rows.rows import check_ids
from weft_kvstore.same_host.arrays import ClientMemory
from weft_kvstore.settings import MAX_STEP
from weft_kvstore.sharding import MOST_ROWS_A_CALL
from weft_kvstore.store import Pulled, StepOutcome, Store, joined_pulls
from weft_kvstore.wire.messages import MAX_RUNS, PayloadKind, Reading

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
        future: StoreFuture[R] = StoreFuture()
        future.set_exception(error)
        return future

    return checked


class StoreCalls(Store):
    """A store that takes many keys in one call, which costs little more than a call of one key. No key may be there
    twice, and none may be a table. One future stands for all; it fails as a whole, by the first key that does.

    Keys are names, or a `key_set` of them; a table is a name, or a `table`. Of names a call checks everything, and what
    does not fit the description fails the future, with StoreRefusedError, before anything is begun. Who calls often
    looks keys up once, as a `key_set` or a `table`; of these a call checks nothing: arrays, a list of one for each
    key, are C-contiguous and have the keys' dtypes and shapes.

    `priority` of a call, within `MAX_CALL_PRIORITY`: what a higher one sends goes first, in both directions. Described
    priorities order what is left equal. Every call by name raises StoreError in a child of the process that made the
    store."""

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
        self._keys = Keys(description, slot, by_name=True)
        self._memory = ClientMemory(description.keys)
        self._process = OwnProcess()
        self.failed: dict[str, dict[int, StoreError]] = {}
        """By key: the steps of this slot whose push has failed, and was not made again; see `ClientCore.failed`."""

    def hand_to(self, submit: Callable[[Operation], None], driver: Driver | None = None) -> None:
        """`submit` is called with each operation that is in order, on the caller's thread; it must not wait, and ends
        the operation's future where nothing can be begun any more. `driver` brings futures to their end, or says who
        must not wait for one."""
        self._submit = submit
        self._driver = driver

    def gradient_buffer(self, key: str) -> Array:
        """An array for the key's gradients, always the same one, zeros at first: nothing of it is copied on the way to
        a shard of this host. It is pushed like any other; what is written there is read when it is pushed: it must not
        be written before the push's future ends. What a push that has failed adds is uncertain once it is written.
        Raises StoreRefusedError for a key that is none, or a table."""
        self._process.check()  # In a child it is the parent's memory, and so may its locks be.
        return self._memory.gradient(self._keys.key_set(key, "gradient_buffer").key_indices[0])

    def value_buffer(self, key: str) -> Array:
        """An array for the key's value, always the same one, to be `out` of a pull. It has that value when the pull's
        future ends, and nothing certain while a pull into it is under way or after one has failed. Raises as
        `gradient_buffer`."""
        self._process.check()
        return self._memory.value(self._keys.key_set(key, "value_buffer").key_indices[0])

    def key_set(self, keys: str | Sequence[str]) -> KeySet:
        """These keys, looked up once. Raises StoreRefusedError."""
        return self._keys.key_set(keys, "pushpull")

    def table(self, key: str) -> TableKey:
        """A table, looked up once for `push_table` and `pull_table`. Raises StoreRefusedError."""
        return self._keys.table(key, "push_rows")

    # --- Values of keys

    def push(self, keys: str | Sequence[str] | KeySet, step: int, gradients: Any, *, priority: int = 0) -> Future[None]:
        """See `Store.push`; of several keys a gradient each, in their order."""
        if type(keys) is not KeySet:
            return self._by_name(self.push, PayloadKind.GRADIENT, keys, step, gradients, priority=priority)
        future: StoreFuture[None] = StoreFuture(self._driver)
        self._submit(
            KeyOperation(
                future, keys, payload_kind=PayloadKind.GRADIENT, step=step, arrays=gradients, priority=priority
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
        priority: int = 0,
    ) -> StoreFuture[Any]:
        """Gradients of `step`, and the values that have seen them, in one message, which ends with these. It takes at
        most `MAX_RUNS` keys."""
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
                priority=priority,
            )
        )
        return future

    def set(self, keys: str | Sequence[str] | KeySet, version: int, values: Any) -> Future[None]:
        """See `Store.set`; of several keys a value each."""
        if type(keys) is not KeySet:
            return self._by_name(self.set, PayloadKind.VALUE, keys, version, values)
        operation = KeyOperation(
            StoreFuture(self._driver), keys, payload_kind=PayloadKind.VALUE, step=version, arrays=values
        )
        return self._begun(operation)

    def restore(self, keys: str | KeySet, version: int, array: Any, number: int) -> Future[None]:
        """Make this what a key was at a version: with number 0 its value, and the key is at that version then; else
        state array `number` of its rule, from 1. Only of keys that nobody has pushed, and not where steps are
        committed. Kept, as by `push`."""
        if type(keys) is not KeySet:
            return self._by_name(self.restore, PayloadKind.RESTORED, keys, version, array, number=number)
        operation = KeyOperation(
            StoreFuture(self._driver),
            keys,
            payload_kind=PayloadKind.RESTORED,
            step=version,
            arrays=array,
            array=number,
        )
        return self._begun(operation)

    def pull(
        self,
        keys: str | Sequence[str] | KeySet,
        version: int,
        *,
        settled: bool = False,
        exact: bool = False,
        out: Any = None,
        with_versions: bool = False,
        as_kept: bool = False,
        priority: int = 0,
    ) -> Future[Any]:
        """A key's value, or a list of several keys', once each has seen `version` updates. With `out`, an array or one
        for each key, C-contiguous and of the key's dtype and shape, they are written there; it is the store's until the
        future has ended, and what is in it after a failure is not said.

        `exact`: none is newer; it fails where a key has passed the version. In mode sync alone. `with_versions`: the
        result is a `Pulled`. `as_kept`: the values as the shard has them, however they travel else.
        """
        if type(keys) is not KeySet or len(keys.names) > MAX_RUNS:
            how = {"exact": exact, "with_versions": with_versions, "as_kept": as_kept, "priority": priority}
            pull: Any = self._by_name if type(keys) is not KeySet else self._pull_parts
            made: Future[Any] = pull(self.pull, None, keys, version, out, settled=settled, **how)
            return made
        future: StoreFuture[Any] = StoreFuture(self._driver)
        self._submit(
            KeyOperation(
                future,
                keys,
                version=version,
                reading=Reading.EXACT if exact else _READING[settled],
                out=out,
                with_versions=with_versions,
                as_kept=as_kept,
                priority=priority,
            )
        )
        return future

    def pull_versions(
        self, keys: Sequence[str] | KeySet, version: int, *, settled: bool = False, out: Any = None, priority: int = 0
    ) -> Future[Pulled]:
        """The keys' values, and which versions they are at; as by `pull`."""
        return self.pull(keys, version, settled=settled, out=out, with_versions=True, priority=priority)

    @_checked
    def pull_state(self, key: str, version: int, *, settled: bool = False) -> Future[Mapping[str, Array]]:
        keys = self._keys.key_set(key, "pull_state")
        at = self._checked_step(version, f"pull of {keys}")
        names = self._keys.state_of(keys.keys[0])
        return self._begun(
            KeyOperation(StoreFuture(self._driver), keys, version=at, reading=_READING[settled], names=names)
        )

    @_checked
    def _by_name(
        self,
        call: Callable[..., Future[Any]],
        kind: PayloadKind | None,
        names: Any,
        at: int,
        given: Any,
        /,
        **how: Any,
    ) -> Future[Any]:
        """Looks the keys of a call up, and checks its step, or version, and its arrays. It pulls where there is no
        `kind`."""
        name, count, what = CALLS[kind] if kind is not None else ("pull", "version", "array for it")
        keys = self._keys.key_set(names, name, pushes=kind is PayloadKind.GRADIENT)
        step = self._checked_step(at, f"{name} of {keys}")
        when = f"{count} {step}"
        if how.get("exact"):
            self._keys.check_sync(f"read_consistent of {keys}, {when}")
        if kind is PayloadKind.RESTORED and self._description.commit is not None:
            where = f"slot {self._slot}: {name} of {keys}, {when}"
            raise StoreRefusedError(f"{where}: a store with commit cannot be restored: its steps begin at 0")
        arrays = None if kind is None and given is None else [given] if keys.single else list(given)
        if arrays is not None:
            self._check_arrays(keys, arrays, f"{name} of", when, what, writable=kind is None)
        return call(keys, step, out=arrays, **how) if kind is None else call(keys, step, arrays, **how)

    def _pull_parts(
        self, pull: Callable[..., Future[Any]], _: None, keys: KeySet, version: int, out: Any, **how: Any
    ) -> Future[Any]:
        """A pull of more keys than one message may name is several."""
        parts = []
        for begin in range(0, len(keys.names), MAX_RUNS):
            some = slice(begin, begin + MAX_RUNS)
            part = self._keys.key_set(keys.names[some], "pull")
            parts.append(pull(part, version, out=None if out is None else out[some], **how))
        if how["with_versions"]:
            return joined(parts, joined_pulls)
        return joined(parts, lambda found: [array for part in found for array in part])

    def _begun(self, operation: Operation) -> Future[Any]:
        self._submit(operation)
        return operation.future

    def _check_arrays(
        self, keys: KeySet, arrays: Sequence[Array], call: str, when: str, what: str, *, writable: bool
    ) -> None:
        """Raises StoreRefusedError for an array that does not fit, naming its key."""
        if len(arrays) != len(keys.names):
            raise StoreRefusedError(f"slot {self._slot}: {call} {keys}, {when}: {len(arrays)} arrays")
        for name, dtype, shape, array in zip(keys.names, keys.dtypes, keys.shapes, arrays, strict=True):
            if not isinstance(array, np.ndarray):
                found = f"a {type(array).__name__}, no NumPy array"
            elif not array.flags.c_contiguous:
                found = "not C-contiguous"
            elif (array.dtype, array.shape) != (dtype, shape):
                found = f"{array.dtype}{list(array.shape)}, the key {dtype}{list(shape)}"
            elif writable and not array.flags.writeable:
                found = "read-only"
            else:
                continue
            raise StoreRefusedError(f"slot {self._slot}: {call} key {name!r}, {when}: the {what} is {found}")

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
        array of that `shape`."""
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
        table = self._keys.table(name, f"{call}_rows")
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
        table = self._keys.table(name, "pull_rows")
        version = self._checked_step(version, f"pull of rows of key {name!r}")
        where = f"slot {self._slot}: pull of rows of key {name!r}"
        count = check_ids(ids, table.key, where)
        if len(ids) > MOST_ROWS_A_CALL:
            raise StoreRefusedError(f"{where}: {len(ids)} rows; a call may have {MOST_ROWS_A_CALL}")
        return self.pull_table(table, version, (ids, count), **how)

    # --- What all shards are told

    @_checked
    def set_hyper(self, numbers: Mapping[str, float], *, step: int, key: str | None = None) -> Future[int]:
        """Give the rule's hyper-parameters these numbers from `step` on, for the whole job or for one key: such as a
        `HyperScope` lets pass, and a step of which the slot has pushed nothing. The future ends with the step, once all
        shards know.

        They take the place of numbers and schedules, and are multiplied by a key's multipliers. What was changed for a
        key stands before what was changed for all, and of slots' changes at one step that of the highest slot holds.
        After a StoreTimeoutError or a StoreLostError they may hold or not, but on all shards alike.
        """
        first = self._checked_step(step, "set_hyper")
        key_index = None if key is None else self._keys.key_indices[key]
        return self._begun(HyperOperation(StoreFuture(self._driver), first, numbers, key, key_index))

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


def consistent_read(source: StoreCalls, keys: KeySet, versioned: Sequence[int]) -> Future[tuple[int, list[Array]]]:
    """Ends with values that the keys had at one version, and which: the newest that can be had. In mode sync alone.
    Fails with StorePassedError where keys have passed every version that was tried. `versioned` are the numbers of the
    keys that have versions: somebody contributes to them."""
    newest = source.pull_versions(keys, 0)
    future: StoreFuture[tuple[int, list[Array]]] = StoreFuture(driver_of(newest))

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
            # Perhaps nobody pushes any more: then all are at one version by now.
            on_end(source.pull_versions(keys, 0), partial(pulled_newest, tries, error))
        elif isinstance(error, StorePassedError) and tries < TRIES:
            on_end(source.pull_versions(keys, 0), partial(pulled_newest, tries, None))
        else:
            future.set_exception(error)

    on_end(newest, partial(pulled_newest, 0, None))
    return future
