"""The calls of a store, the same for every store: checked, made an operation, handed to a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol

from weft_kvstore.arrays import Array
from weft_kvstore.client.arguments import Arguments
from weft_kvstore.client.keys import KeyPayload, KeyPull, PushOperation, PushPull
from weft_kvstore.client.operation import AskedKeys, ConsistentRead, Gives, Operation
from weft_kvstore.client.plan import KeySet
from weft_kvstore.errors import StoreError
from weft_kvstore.futures import Driver, StoreFuture, joined
from weft_kvstore.process import OwnProcess
from weft_kvstore.step_outcome import StepOutcome
from weft_kvstore.store import BufferStore, Pulled, joined_pulls
from weft_kvstore.wire.messages import MAX_RUNS, PayloadKind, Reading

_READING: Final = {False: Reading.OWN, True: Reading.SETTLED}


class StoreCalls(BufferStore):
    """Every call raises StoreError in a child of the process that made the store.

    `submit` is called with each operation that is in order, on the caller's thread; it must not wait, and raises
    StoreError where nothing can be begun any more. `driver` brings futures to their end, or says who must not wait
    for one."""

    def __init__(self, arguments: Arguments, submit: Callable[[Operation], None], driver: Driver | None = None) -> None:
        self._arguments = arguments
        self._process = OwnProcess()
        self._submit = submit
        self._driver = driver

    def push(
        self, keys: str | Sequence[str], step: int, gradients: Array | Sequence[Array], *, priority: int = 0
    ) -> Future[None]:
        return self._begin(
            lambda future: self._arguments.push(future, keys, step, gradients, payload_kind=PayloadKind.GRADIENT),
            priority,
        )

    def restore(self, key: str, version: int, array: Array, number: int) -> Future[None]:
        return self._begin(lambda future: self._arguments.restore(future, key, version, array, number))

    def key_set(self, keys: Sequence[str]) -> KeySet:
        return self._arguments.key_set(keys)

    def push_keys(self, keys: KeySet, step: int, gradients: Sequence[Array], *, priority: int = 0) -> Future[None]:
        future: StoreFuture[None] = StoreFuture(self._driver)
        payload = KeyPayload(PayloadKind.GRADIENT, keys, step, gradients)
        return self._planned(PushOperation(future, payload), future, priority)

    def pull_keys(
        self,
        keys: KeySet,
        version: int,
        *,
        out: Sequence[Array] | None = None,
        single: bool = False,
        priority: int = 0,
    ) -> Future[Any]:
        future: StoreFuture[Any] = StoreFuture(self._driver)
        asked = AskedKeys(keys, version, None, Reading.OWN, Gives.VALUE if single else Gives.VALUES)
        return self._planned(KeyPull(future, asked, out), future, priority)

    def pushpull(
        self,
        keys: KeySet,
        step: int,
        gradients: Sequence[Array],
        *,
        out: Sequence[Array] | None = None,
        single: bool = False,
        priority: int = 0,
    ) -> StoreFuture[Any]:
        future: StoreFuture[Any] = StoreFuture(self._driver)
        payload = KeyPayload(PayloadKind.GRADIENT, keys, step, gradients)
        gives = Gives.VALUE if single else Gives.VALUES
        asked = AskedKeys(keys, step + 1, None, Reading.OWN, gives)
        return self._planned(PushPull(future, payload, asked, out), future, priority)

    def push_rows(self, key: str, step: int, ids: Array, rows: Array, *, priority: int = 0) -> Future[None]:
        return self._begin(
            lambda future: self._arguments.push_rows(future, key, step, ids, rows, payload_kind=PayloadKind.GRADIENT),
            priority,
        )

    def set(self, keys: str | Sequence[str], version: int, values: Array | Sequence[Array]) -> Future[None]:
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
        reading = _READING[settled]
        return self._begin(lambda future: self._arguments.pull(future, key, version, reading=reading, gives=Gives.KEPT))

    def pull_rows(
        self, key: str, ids: Array, version: int, *, settled: bool = False, priority: int = 0
    ) -> Future[Array]:
        return self._begin(
            lambda future: self._arguments.pull_rows(future, key, ids, version, state=False, settled=settled), priority
        )

    def pull_state_rows(
        self, key: str, ids: Array, version: int, *, settled: bool = False
    ) -> Future[Mapping[str, Array]]:
        return self._begin(
            lambda future: self._arguments.pull_rows(future, key, ids, version, state=True, settled=settled)
        )

    def set_hyper(
        self, changes: Mapping[str, float], *, step: int | None = None, key: str | None = None
    ) -> Future[int]:
        return self._begin(lambda future: self._arguments.set_hyper(future, changes, step, key))

    def barrier(self, step: int, nothing: Sequence[str]) -> Future[StepOutcome | None]:
        return self._begin(lambda future: self._arguments.barrier(future, step, nothing))

    def _planned(self, operation: Operation, future: StoreFuture[Any], priority: int) -> StoreFuture[Any]:
        operation.priority = priority
        try:
            self._submit(operation)
        except StoreError as error:
            future.set_exception(error)
        return future

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
        if error is not None:
            operation.future.set_exception(error)
        else:
            operation.future.set_result(result)
