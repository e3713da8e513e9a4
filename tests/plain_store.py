"""A store for several slots in one process, written as plainly as it can be: what runs are compared against.

It holds no version back and keeps no old one: a pull of a version that is passed already is an error, so a test that
uses it also proves that no slot asks too late.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from weft_kvstore.errors import StoreError, StoreLostError
from weft_kvstore.store import ClientStatistics

FURTHEST_AHEAD = 2
"""Steps beyond the first that is not applied that a slot may push, as in the real store."""


@dataclass
class _Key:
    value: np.ndarray
    mean: bool
    version: int = 0
    pushed: dict[int, dict[int, np.ndarray | None]] = field(default_factory=dict)
    pulls: list[tuple[int, Future[np.ndarray]]] = field(default_factory=list)


class PlainCluster:
    """Descent with a fixed lr on the sum over slots, in slot order; the mean for keys of `means`."""

    def __init__(self, first: Mapping[str, np.ndarray], slots: int, lr: float, means: Sequence[str] = ()) -> None:
        self.slots = slots
        self.lr = lr
        self.keys = {key: _Key(value.copy(), key in means) for key, value in first.items()}
        self.lock = threading.Lock()

    def store(self, slot: int) -> PlainStore:
        return PlainStore(self, slot)

    def add(self, slot: int, key: str, step: int, gradient: np.ndarray | None) -> None:
        """Called with the lock held."""
        entry = self.keys[key]
        if step < entry.version or slot in entry.pushed.get(step, {}):
            raise StoreError(f"slot {slot} gave step {step} of {key} twice")
        if step > entry.version + FURTHEST_AHEAD:
            raise StoreError(f"slot {slot} is at step {step} of {key}, which has version {entry.version}")
        entry.pushed.setdefault(step, {})[slot] = gradient
        while len(entry.pushed.get(entry.version, {})) == self.slots:
            self._apply(entry)

    def _apply(self, entry: _Key) -> None:
        pushed = entry.pushed.pop(entry.version)
        given = [pushed[slot] for slot in sorted(pushed) if pushed[slot] is not None]
        if given:
            merged = sum(given[1:], given[0].copy())
            entry.value = merged / len(given) if entry.mean else entry.value - self.lr * merged
        entry.version += 1
        for version, future in [pull for pull in entry.pulls if pull[0] == entry.version]:
            entry.pulls.remove((version, future))
            future.set_result(entry.value.copy())


class PlainStore:
    """One slot's way to a PlainCluster."""

    def __init__(self, cluster: PlainCluster, slot: int) -> None:
        self.cluster = cluster
        self.slot = slot
        self.closed = False
        self.open: list[Future[np.ndarray]] = []

    def push(self, key: str, step: int, gradient: np.ndarray, ids: np.ndarray | None = None) -> Future[None]:
        """Rows as a whole gradient, with zeros elsewhere: the same under plain descent."""
        expected = self.cluster.keys[key].value
        if ids is not None:
            assert ids.dtype == np.int64
            assert gradient.shape == (len(ids), *expected.shape[1:])
            rows, gradient = gradient, np.zeros_like(expected, gradient.dtype)
            np.add.at(gradient, ids[ids >= 0], rows[ids >= 0])
        assert gradient.shape == expected.shape
        assert gradient.dtype == expected.dtype
        assert gradient.flags.c_contiguous
        return self._given([key], step, gradient)

    def barrier(self, step: int, nothing: Sequence[str]) -> Future[None]:
        return self._given(nothing, step, None)

    def pull(
        self, key: str, version: int, ids: np.ndarray | None = None, *, settled: bool = False
    ) -> Future[np.ndarray]:
        if ids is None:
            return self._pull(key, version)
        rows: Future[np.ndarray] = Future()

        def take(whole: Future[np.ndarray]) -> None:
            if (error := whole.exception()) is not None:
                rows.set_exception(error)
                return
            taken = whole.result()[ids]
            taken[ids < 0] = 0
            rows.set_result(taken)

        self._pull(key, version).add_done_callback(take)
        return rows

    def _pull(self, key: str, version: int) -> Future[np.ndarray]:
        future: Future[np.ndarray] = Future()
        with self.cluster.lock:
            entry = self.cluster.keys[key]
            if self.closed:
                future.set_exception(StoreLostError(f"slot {self.slot} has closed its store"))
            elif entry.version > version:
                future.set_exception(StoreError(f"{key} has passed version {version}: it has {entry.version}"))
            elif entry.version == version:
                future.set_result(entry.value.copy())
            else:
                entry.pulls.append((version, future))
                self.open.append(future)
        return future

    def statistics(self) -> ClientStatistics:
        return ClientStatistics(
            bytes_sent=0,
            bytes_received=0,
            frames_sent=0,
            frames_received=0,
            queued_slices=0,
            queued_bytes=0,
            in_flight_bytes=0,
            operations=0,
            links=(),
        )

    def close(self) -> None:
        with self.cluster.lock:
            self.closed = True
            waiting = [future for future in self.open if not future.done()]
            for entry in self.cluster.keys.values():
                entry.pulls = [pull for pull in entry.pulls if pull[1] not in waiting]
        for future in waiting:
            future.set_exception(StoreLostError(f"slot {self.slot} has closed its store"))

    def _given(self, keys: Sequence[str], step: int, gradient: np.ndarray | None) -> Future[None]:
        future: Future[None] = Future()
        try:
            with self.cluster.lock:
                if self.closed:
                    raise StoreLostError(f"slot {self.slot} has closed its store")
                for key in keys:
                    self.cluster.add(self.slot, key, step, gradient)
        except StoreError as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        return future
