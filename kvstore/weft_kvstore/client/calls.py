"""The calls of a store, the same for every store: checked, made an operation, handed to a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final, Protocol

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.client.arguments import Arguments
from weft_kvstore.client.operation import Gives, KeyPull, Operation, PushOperation, PushPull
from weft_kvstore.client.plan import KeySet, TableKey
from weft_kvstore.client.row_operation import PullRowsOperation, PushRowsOperation
from weft_kvstore.errors import StoreError, StorePassedError, StoreTimeoutError
from weft_kvstore.futures import Driver, StoreFuture, joined, on_end
from weft_kvstore.process import OwnProcess
from weft_kvstore.rows.rows import Rows, wanted_rows
from weft_kvstore.step_outcome import StepOutcome
from weft_kvstore.store import BufferStore, Pulled, Store, joined_pulls
from weft_kvstore.wire.messages import MAX_RUNS, PayloadKind, Reading

_READING: Final = {False: Reading.OWN, True: Reading.SETTLED}


class StoreCalls(Store, BufferStore):
    """A store that takes many keys in one call, which costs little more than a call of one key. No key may be there
    twice, and none may be a table. One future stands for all; it fails as a whole, by the first key that does.

    `priority` of a call, within `MAX_CALL_PRIORITY`: what a higher one sends goes first, in both directions. Described
    priorities order what is left equal. Every call raises StoreError in a child of the process that made the store.

    `submit` is called with each operation that is in order, on the caller's thread; it must not wait, and ends the
    operation's future where nothing can be begun any more. `driver` brings futures to their end, or says who must not
    wait for one."""

    def __init__(self, arguments: Arguments, submit: Callable[[Operation], None], driver: Driver | None = None) -> None:
        self._arguments = arguments
        self._process = OwnProcess()
        self._submit = submit
        self._driver = driver

    def push(
        self, keys: str | Sequence[str], step: int, gradients: Array | Sequence[Array], *, priority: int = 0
    ) -> Future[None]:
        """See `Store.push`; of several keys a gradient each, in their order."""
        return self._begin(
            lambda future: self._arguments.push(future, keys, step, gradients, payload_kind=PayloadKind.GRADIENT),
            priority,
        )

    def restore(self, key: str, version: int, array: Array, number: int) -> Future[None]:
        """Make this what a key was at a version: with number 0 its value, and the key is at that version then; else
        state array `number` of its rule, from 1. Only of keys that nobody has pushed. Kept, as by `push`."""
        return self._begin(lambda future: self._arguments.restore(future, key, version, array, number))

    def key_set(self, keys: Sequence[str]) -> KeySet:
        """These keys, looked up once for `push_keys`, `pull_keys` and `pushpull`. Raises StoreRefusedError."""
        return self._arguments.key_set(keys)

    def push_keys(self, keys: KeySet, step: int, gradients: Sequence[Array], *, priority: int = 0) -> Future[None]:
        """`push` of a `key_set`. Arrays fit already, as by `pushpull`."""
        future: StoreFuture[None] = StoreFuture(self._driver)
        operation = PushOperation(future, PayloadKind.GRADIENT, keys, step, gradients)
        operation.priority = priority
        self._submit(operation)
        return future

    def pull_keys(
        self,
        keys: KeySet,
        version: int,
        *,
        out: list[Array] | None = None,
        single: bool = False,
        priority: int = 0,
    ) -> Future[Any]:
        """`pull` of a `key_set`. Arrays fit already, and `single` counts, as by `pushpull`."""
        future: StoreFuture[Any] = StoreFuture(self._driver)
        gives = Gives.VALUE if single else Gives.VALUES
        operation = KeyPull(future, keys, version, reading=Reading.OWN, gives=gives, out=out)
        operation.priority = priority
        self._submit(operation)
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
        """Gradients of `step`, and the values that have seen them, in one message: of a `key_set`. Arrays fit already:
        C-contiguous, of the keys' dtypes and shapes. With `single` it ends with the one key's value, else with a list.
        Where it fails, `arrived` of the future says whether the shards have the gradients all the same."""
        future: StoreFuture[Any] = StoreFuture(self._driver)
        gives = Gives.VALUE if single else Gives.VALUES
        operation = PushPull(future, keys, step, gradients, gives=gives, out=out)
        operation.priority = priority
        self._submit(operation)
        return future

    def table(self, key: str) -> TableKey:
        """A table, looked up once for `push_table` and `pull_table`. Raises StoreRefusedError."""
        return self._arguments.table(key)

    def push_table(
        self, table: TableKey, step: int, ids: Array, rows: Array, count: int, *, priority: int = 0
    ) -> Future[None]:
        """`push_rows` of a `table` to which the slot contributes. They fit already, and `count` is what `fitting` says
        of them."""
        flat = rows.reshape(len(ids), table.cut.width)
        given = Rows(ids[:count], flat[:count])
        return self._begin(
            lambda future: PushRowsOperation(future, table, PayloadKind.GRADIENT, step, given),
            priority,
        )

    def pull_table(self, table: TableKey, version: int, *, ids: Array, count: int, priority: int = 0) -> Future[Array]:
        """`pull_rows` of a `table`. They fit already, as by `push_table`."""
        return self._begin(
            lambda future: PullRowsOperation(
                future, table, version, Reading.OWN, wanted_rows(ids, count), rows=len(ids)
            ),
            priority,
        )

    def push_rows(self, key: str, step: int, ids: Array, rows: Array, *, priority: int = 0) -> Future[None]:
        return self._begin(
            lambda future: self._arguments.push_rows(future, key, step, ids, rows, payload_kind=PayloadKind.GRADIENT),
            priority,
        )

    def set(self, keys: str | Sequence[str], version: int, values: Array | Sequence[Array]) -> Future[None]:
        """See `Store.set`; of several keys a value each."""
        return self._begin(
            lambda future: self._arguments.push(future, keys, version, values, payload_kind=PayloadKind.VALUE)
        )

    def set_rows(self, key: str, version: int, ids: Array, rows: Array) -> Future[None]:
        return self._begin(
            lambda future: self._arguments.push_rows(future, key, version, ids, rows, payload_kind=PayloadKind.VALUE)
        )

    def pull(
        self,
        keys: str | Sequence[str],
        version: int,
        *,
        settled: bool = False,
        exact: bool = False,
        out: Any = None,
        priority: int = 0,
    ) -> Future[Any]:
        """A key's value, or a list of several keys', once each has seen `version` updates. With `out`, an array or one
        for each key, C-contiguous and of the key's dtype and shape, they are written there; it is the store's until the
        future has ended, and what is in it after a failure is not said.

        New arrays, of which small ones may lie in one buffer: who keeps one of them keeps up to 1 MiB. `exact`: none is
        newer; it fails where a key has passed the version. In mode sync alone.
        """
        reading = Reading.EXACT if exact else _READING[settled]
        return self._pull(keys, out, priority, _one_behind_the_other, version=version, reading=reading)

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
        how = {"version": version, "reading": _READING[settled], "gives": Gives.VERSIONS}
        return self._pull(keys, out, priority, joined_pulls, **how)

    def _pull(
        self, keys: str | Sequence[str], out: Any, priority: int, join: Callable[[list[Any]], Any], **how: Any
    ) -> Future[Any]:
        """A pull of more keys than one message may name is several. `how` is of `Arguments.pull`."""

        def pull(keys: str | Sequence[str], out: Any) -> Future[Any]:
            return self._begin(lambda future: self._arguments.pull(future, keys, out=out, **how), priority)

        if isinstance(keys, str) or len(keys) <= MAX_RUNS:
            return pull(keys, out)
        parts = [slice(begin, begin + MAX_RUNS) for begin in range(0, len(keys), MAX_RUNS)]
        return joined([pull(keys[some], None if out is None else out[some]) for some in parts], join)

    def read_consistent(self, keys: Sequence[str]) -> Future[tuple[int, list[Array]]]:
        """Values that the keys had at one version, and which: the newest that can be had, also while others push. In
        mode sync alone. Fails with StorePassedError where keys have passed every version that was tried."""
        self._process.check()
        try:
            read = ConsistentRead(self, keys, self._arguments.moving(keys), self._driver)
        except StoreError as error:
            return _failed(error)
        read.begin()
        return read.future

    def pull_state(self, key: str, version: int, *, settled: bool = False) -> Future[Mapping[str, Array]]:
        reading = _READING[settled]
        return self._begin(lambda future: self._arguments.pull_state(future, key, version, reading=reading))

    def pull_kept(self, key: str, version: int, *, settled: bool = False) -> Future[Array]:
        """The key's value as its shard has it, however it travels else; as by `pull`."""
        reading = _READING[settled]
        return self._begin(lambda future: self._arguments.pull(future, key, version, reading=reading, gives=Gives.KEPT))

    def pull_rows(
        self, key: str, ids: Array, version: int, *, settled: bool = False, priority: int = 0
    ) -> Future[Array]:
        reading = _READING[settled]
        return self._begin(
            lambda future: self._arguments.pull_rows(future, key, ids, version, state=False, reading=reading), priority
        )

    def pull_state_rows(
        self, key: str, ids: Array, version: int, *, settled: bool = False
    ) -> Future[Mapping[str, Array]]:
        reading = _READING[settled]
        return self._begin(
            lambda future: self._arguments.pull_rows(future, key, ids, version, state=True, reading=reading)
        )

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
        return self._begin(lambda future: self._arguments.set_hyper(future, changes, step, key))

    def barrier(self, step: int, nothing: Sequence[str]) -> Future[StepOutcome | None]:
        return self._begin(lambda future: self._arguments.barrier(future, step, nothing))

    def _begin(self, make: Callable[[Future[Any]], Operation], priority: int = 0) -> Future[Any]:
        self._process.check()
        future: StoreFuture[Any] = StoreFuture(self._driver)
        try:
            operation = make(future)
            if priority:
                operation.priority = priority
            self._submit(operation)
        except StoreError as error:
            future.set_exception(error)
        except MemoryError as error:
            future.set_exception(StoreError(f"there is no memory for what is asked: {error}"))
        return future


def _one_behind_the_other(parts: list[list[Array]]) -> list[Array]:
    return [array for part in parts for array in part]


def _failed(error: StoreError) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


class HasOutcomes(Protocol):
    """What operations end in: a client's state machine, or the local store's."""

    outcomes: list[tuple[Operation, Any, StoreError | None]]


def end_futures(core: HasOutcomes) -> None:
    """Ends the futures of operations that have ended."""
    outcomes, core.outcomes = core.outcomes, []
    for operation, result, error in outcomes:
        try:
            if error is not None:
                operation.future.set_exception(error)
            else:
                operation.future.set_result(result)
        except InvalidStateError:
            pass  # A pull that has failed with a push that it waited for.


# --- Reads several keys at one version while others push --------------------------------------------------------------
# It waits for nothing: it goes on where one of its pulls ends.


TRIES: Final = 8
"""Pulls at one version. The first is at the newest that was seen. Where keys have passed it somebody trains, and each
further one looks a version further ahead, until the keys come there later than the pull does."""


class ReadSource(Protocol):
    """What it uses of a store."""

    def pull_versions(self, keys: Sequence[str], version: int) -> Future[Pulled]: ...

    def pull(self, keys: Sequence[str], version: int, *, exact: bool = False) -> Future[list[Array]]: ...


class ConsistentRead:
    """One such read: `future` ends with the version and the values. `moving` are the numbers of the keys that have
    versions: somebody contributes to them."""

    def __init__(
        self, source: ReadSource, keys: Sequence[str], moving: Sequence[int], driver: Driver | None = None
    ) -> None:
        self.future: StoreFuture[tuple[int, list[Array]]] = StoreFuture(driver)
        self._source = source
        self._keys = keys
        self._moving = np.array(moving, np.int64)
        self._target = 0
        self._tries = 0
        self._overdue: StoreTimeoutError | None = None

    def begin(self) -> None:
        """Looks at what there is."""
        on_end(self._source.pull_versions(self._keys, 0), self._looked)

    def _looked(self, ended: Future[Pulled]) -> None:
        error = ended.exception()
        if error is not None:
            self.future.set_exception(error)
            return
        pulled = ended.result()
        lowest = int(pulled.lowest[self._moving].min(initial=np.iinfo(np.int64).max))
        highest = int(pulled.highest[self._moving].max(initial=0))
        if lowest >= highest:  # All of one version; or there is nothing that has versions.
            self.future.set_result((highest, pulled.values))
        elif self._overdue is not None:
            self.future.set_exception(self._overdue)
        else:
            self._target = highest + self._tries
            self._tries += 1
            on_end(self._source.pull(self._keys, self._target, exact=True), self._came)

    def _came(self, ended: Future[list[Array]]) -> None:
        error = ended.exception()
        if error is None:
            self.future.set_result((self._target, ended.result()))
        elif isinstance(error, StoreTimeoutError):
            self._overdue = error  # Perhaps nobody pushes any more: then all are at one version by now.
            self.begin()
        elif isinstance(error, StorePassedError) and self._tries < TRIES:
            self.begin()
        else:
            self.future.set_exception(error)
