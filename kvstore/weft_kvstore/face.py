"""The four calls of a store, the same for every store: checked, made an operation, handed to a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from weft_kvstore.arguments import Arguments
from weft_kvstore.operation import Operation
from weft_kvstore.store import Array, StoreError


class StoreFace:
    """`submit` is called with each operation that is in order, on the caller's thread; it must not wait, and raises
    StoreError where nothing can be begun any more."""

    def __init__(self, arguments: Arguments, submit: Callable[[Operation], None]) -> None:
        self._arguments = arguments
        self._submit = submit

    def push(self, key: str, step: int, gradient: Array) -> Future[None]:
        return self._begin(lambda future: self._arguments.push(future, key, step, gradient))

    def pull(self, key: str, version: int) -> Future[Array]:
        return self._begin(lambda future: self._arguments.pull(future, key, version, state=False))

    def pull_state(self, key: str, version: int) -> Future[Mapping[str, Array]]:
        return self._begin(lambda future: self._arguments.pull(future, key, version, state=True))

    def barrier(self, step: int, nothing: Sequence[str]) -> Future[None]:
        return self._begin(lambda future: self._arguments.barrier(future, step, nothing))

    def _begin(self, make: Callable[[Future[Any]], Operation]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # What has begun cannot be taken back.
        try:
            self._submit(make(future))
        except StoreError as error:
            future.set_exception(error)
        except MemoryError as error:
            future.set_exception(StoreError(f"there is no memory for what is pulled: {error}"))
        return future


def end_futures(outcomes: Sequence[tuple[Operation, Any, StoreError | None]]) -> None:
    """Ends the futures of operations that have ended."""
    for operation, result, error in outcomes:
        if error is not None:
            operation.future.set_exception(error)
        else:
            operation.future.set_result(result)
