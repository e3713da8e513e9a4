"""Brings parameters out of the store: for an evaluation, and as a safetensors document that is made piece by piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np

from weft.agent.transfer import Document
from weft.api.values import state_tensor
from weft_graph.program import Update
from weft_kvstore.arrays import Array, bytes_of
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.errors import StoreTimeoutError
from weft_kvstore.snapshot_files import Tensor, header_of
from weft_worker.patience import result_of
from weft_worker.run_store import Readable, RunStore

RUN_BYTES: Final = 4 * 1024 * 1024
"""Rows of a table that travel at once take about so much."""
PIECE_BYTES: Final = 1024 * 1024
AHEAD: Final = 2
"""Answers that are asked for while one is handed on."""


_Asked = tuple[str, Future[Any], Sequence[str] | None]
"""What is pulled, and the rule's arrays of it that the document goes on with; None: it is a value."""


@dataclass(frozen=True, slots=True)
class Checkpointer:
    """What there is to bring: `keys` of the `store`, and the arrays of the rule's `state`, of a `job`."""

    store: RunStore
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
            asked = self._asked(stateful if self.state else (), version, settled=settled)
            for array in _answers(asked, self.timeout_s):
                yield from _bytes_of(array)

        return Document(len(head) + sum(tensor.nbytes for tensor in tensors), pieces)

    def _asked(self, stateful: Sequence[KeyDescription], version: int, *, settled: bool) -> Iterator[_Asked]:
        """Pulls one part after the other. A table's arrays of state come one after the other, since the format has them
        so: the store gives all of them each time."""
        pull = partial(self.store.pull, settled=settled)
        for key in self.keys:
            for ids in ids_of(key):
                yield f"the value of key {key.key!r} at version {version}", pull(key.key, version, ids), None
        for key in stateful:
            what = f"the state of key {key.key!r} at version {version}"
            for names in [(name,) for name in self.state] if key.rows else [self.state]:
                for ids in ids_of(key):
                    yield what, pull(key.key, version, ids, state=True), names


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


def ids_of(key: KeyDescription) -> Iterator[Array | None]:
    """The ids of all rows of a table, a few MiB of rows at a time; None for a key that is pulled and set whole."""
    if not key.rows:
        yield None
        return
    at_once = max(RUN_BYTES // max(key.row_bytes, 1), 1)
    for start in range(0, key.shape[0], at_once):
        yield np.arange(start, min(start + at_once, key.shape[0]), dtype=np.int64)


def _answers(asked: Iterator[_Asked], timeout_s: float) -> Iterator[Array]:
    """The arrays of all answers in order; the next ones are asked for while one is taken."""
    under_way: deque[_Asked] = deque()
    more = True
    while more or under_way:
        under_way.extend(islice(asked, AHEAD + 1 - len(under_way)))
        more = len(under_way) > AHEAD
        if under_way:
            what, future, names = under_way.popleft()
            found = result_of(future, what, timeout_s)
            yield from [found] if names is None else [found[name] for name in names]


def _bytes_of(array: Array) -> Iterator[bytes]:
    view = bytes_of(np.ascontiguousarray(array))
    for start in range(0, view.nbytes, PIECE_BYTES):
        yield bytes(view[start : start + PIECE_BYTES])
