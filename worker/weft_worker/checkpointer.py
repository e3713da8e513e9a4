"""Brings parameters out of the store: for an evaluation, and as a safetensors document that is made piece by piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft.agent.transfer import Document
from weft.api.values import state_tensor
from weft_graph.program import Update
from weft_kvstore.arrays import Array, bytes_of
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.errors import StoreTimeoutError
from weft_kvstore.snapshot_files import Tensor, header_of
from weft_kvstore.store import Readable, Store
from weft_worker.patience import result_of

RUN_BYTES: Final = 4 * 1024 * 1024
"""Rows of a table that travel at once take about so much."""
PIECE_BYTES: Final = 1024 * 1024
AHEAD: Final = 2
"""Answers that are asked for while one is handed on."""


@dataclass(frozen=True, slots=True)
class _Ask:
    """One call of the store, and the arrays of its answer that the document goes on with."""

    what: str
    begin: Callable[[], Future[Any]]
    take: Callable[[Any], Sequence[Array]]


@dataclass(frozen=True, slots=True)
class Checkpointer:
    """What there is to bring: `keys` of the `store`, and the arrays of the rule's `state`, of a `job`."""

    store: Store
    keys: tuple[KeyDescription, ...]
    state: tuple[str, ...]
    job: str
    timeout_s: float

    def document(self, version: int, *, settled: bool = False, with_state: bool = False) -> Document:
        """The document of all keys at `version`: tensors named as keys, metadata `job` and `step`.

        Making its pieces raises StoreError. A few MiB of a table are in memory at once, and two dense keys.
        """
        stateful = [key for key in self.keys if with_state and key.update is Update.RULE and key.slots]
        tensors = [Tensor(key.key, key.dtype, tuple(key.shape)) for key in self.keys]
        for key in stateful:
            for name in self.state:
                tensors.append(Tensor(state_tensor(name, key.key), key.dtype, tuple(key.shape)))
        head = header_of(tensors, {"job": self.job, "step": str(version)})

        def pieces() -> Iterator[bytes]:
            yield head
            asks = self._all_asks(stateful, version, settled=settled)
            for array in _answers(asks, self.timeout_s):
                yield from _bytes_of(array)

        return Document(len(head) + sum(tensor.nbytes for tensor in tensors), pieces)

    def _all_asks(self, stateful: Sequence[KeyDescription], version: int, *, settled: bool) -> Iterator[_Ask]:
        for key in self.keys:
            yield from self._asks(key, version, settled=settled)
        for key in stateful if self.state else ():
            yield from self._state_asks(key, version, settled=settled)

    def _asks(self, key: KeyDescription, version: int, *, settled: bool) -> Iterator[_Ask]:
        name, what = key.key, f"the value of key {key.key!r} at version {version}"
        if not key.rows:
            yield _Ask(what, lambda: self.store.pull(name, version, settled=settled), lambda array: [array])
            return
        for ids in runs_of(key):
            yield _Ask(what, _bound(self.store.pull_rows, name, ids, version, settled), lambda array: [array])

    def _state_asks(self, key: KeyDescription, version: int, *, settled: bool) -> Iterator[_Ask]:
        """A table's arrays one after the other, since the format has them so: the store gives all of them each time."""
        what = f"the state of key {key.key!r} at version {version}"
        if not key.rows:
            begin = lambda: self.store.pull_state(key.key, version, settled=settled)  # noqa: E731
            yield _Ask(what, begin, lambda arrays: [arrays[name] for name in self.state])
            return
        for name in self.state:
            for ids in runs_of(key):
                begin = _bound(self.store.pull_state_rows, key.key, ids, version, settled)
                yield _Ask(what, begin, _taking(name))


def pull_all(
    store: Readable, keys: Iterable[str], version: int, timeout_s: float, *, settled: bool = False
) -> dict[str, Array]:
    """Every key's value at `version`, asked for at once. Raises the first StoreError; StoreTimeoutError names keys."""
    futures = {key: store.pull(key, version, settled=settled) for key in keys}
    done, missing = wait(futures.values(), timeout_s, return_when=FIRST_EXCEPTION)
    for future in done:
        future.result()
    if missing:
        late = sorted(key for key, future in futures.items() if future in missing)
        raise StoreTimeoutError(f"no value of {late} at version {version} within {timeout_s:g} s")
    return {key: future.result() for key, future in futures.items()}


def runs_of(key: KeyDescription) -> Iterator[Array]:
    """The ids of all rows of a table, in runs of a few MiB of rows."""
    at_once = max(RUN_BYTES // max(key.row_bytes, 1), 1)
    for start in range(0, key.shape[0], at_once):
        yield np.arange(start, min(start + at_once, key.shape[0]), dtype=np.int64)


def _answers(asks: Iterator[_Ask], timeout_s: float) -> Iterator[Array]:
    """The arrays of all answers in order; the next ones are asked for while one is taken."""
    under_way: deque[tuple[_Ask, Future[Any]]] = deque()
    for ask in asks:
        under_way.append((ask, ask.begin()))
        if len(under_way) > AHEAD:
            first, future = under_way.popleft()
            yield from first.take(result_of(future, first.what, timeout_s))
    while under_way:
        first, future = under_way.popleft()
        yield from first.take(result_of(future, first.what, timeout_s))


def _bound(
    pull: Callable[..., Future[Any]], key: str, ids: Array, version: int, settled: bool
) -> Callable[[], Future[Any]]:
    return lambda: pull(key, ids, version, settled=settled)


def _taking(name: str) -> Callable[[Mapping[str, Array]], Sequence[Array]]:
    return lambda arrays: [arrays[name]]


def _bytes_of(array: Array) -> Iterator[bytes]:
    view = bytes_of(np.ascontiguousarray(array))
    for start in range(0, view.nbytes, PIECE_BYTES):
        yield bytes(view[start : start + PIECE_BYTES])
