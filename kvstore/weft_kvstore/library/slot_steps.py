"""Which steps of each key a slot has begun; what begins one, or counts on one, goes to the store in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.description.key_name import user_key
from weft_kvstore.errors import StoreError, StoreRefusedError
from weft_kvstore.library.array_traffic import ArrayTraffic
from weft_kvstore.library.key_book import KeyBook
from weft_kvstore.library.push_log import FailedPush, PushLog
from weft_kvstore.library.step_counts import StepCounts
from weft_kvstore.store import BulkStore

R = TypeVar("R")

MAX_STEP: Final = 1 << 62

HandOver = Callable[[list[int], list[Array]], Future[R]]
"""hand_over(numbers, arrays): gives the store a call with the keys' steps or versions, and its arrays on the host."""


class SlotSteps:
    """A step is counted and handed to the store at once, by one thread at a time: of each key, what was called first
    goes first. So may calls from several threads, and calls whose arrays have to come from a GPU before.

    Calls raise StoreRefusedError where a number cannot be meant; then nothing was begun.
    """

    def __init__(self, store: BulkStore, book: KeyBook, traffic: ArrayTraffic, start: int) -> None:
        self._store = store
        self._book = book
        self._traffic = traffic
        self._counts = StepCounts(book.pushed, start)
        self._log = PushLog()
        self._unseen = set(book.pushed)
        """Keys that the slot pushes and that have not told yet which step they are at."""
        self._lock = threading.RLock()
        """Held while steps are counted and handed over, which waits for nothing. A signal's handler may call too."""

    @property
    def start(self) -> int:
        """Where counting began."""
        return self._counts.start

    def of(self, name: str) -> int:
        """Steps of a key that were begun."""
        return self._counts[name]

    def has_begun(self, name: str) -> bool:
        """Whether a step of the key was begun here."""
        return self._counts.has_begun(name)

    def push(
        self, call: str, names: list[str], step: int | None, arrays: list[Any], hand_over: HandOver[None]
    ) -> Future[None]:
        """Begins a step of each key; what raises has begun none."""
        check_number(step, f"{self._book.call(call)}: step")
        with self._lock:
            befores = [self._counts[name] for name in names]
            if step is None:
                for name, before in zip(names, befores, strict=True):
                    self._check_none_refused(call, name, before)
            steps = self._counts.take(names, None if step is None else int(step))
            try:
                pushed = self._traffic.bring(names, arrays, lambda hosts: hand_over(steps, hosts))
            except BaseException:  # Nothing has left.
                self._counts.give_back(names, steps, befores)
                raise
            self._log.add(names, steps, pushed)
        return pushed

    def set(
        self, call: str, names: list[str], version: int, arrays: list[Any], hand_over: HandOver[None]
    ) -> Future[None]:
        """Hands over values of a version."""
        check_number(version, f"{self._book.call(call)}: version", may_lack=False)
        with self._lock:
            return self._traffic.bring(names, arrays, lambda hosts: hand_over([int(version)] * len(names), hosts))

    def end(self, step: int | None, hand_over: Callable[[list[tuple[int, list[str]]]], Future[R]]) -> Future[R]:
        """Ends all steps up to this one: each with the keys that were not pushed in it."""
        check_number(step, f"{self._book.call('end_step')}: step")
        with self._lock:
            for name in self._book.pushed:
                self._check_none_refused("end_step", name, self._counts.last(step) + 1)
            try:
                ended = self._counts.end(None if step is None else int(step))
            except ValueError as error:
                raise StoreRefusedError(f"{self._book.call('end_step')}: {error}") from None
            skipped = {name for _, nothing in ended for name in nothing}
            return self._traffic.bring(sorted(skipped), [], lambda _: hand_over(ended))

    def versions(self, call: str, names: Sequence[str], version: int | None) -> tuple[list[int], list[Future[Any]]]:
        """Which version of each key is meant, and the pushes without which there will be none: they guard a pull."""
        check_number(version, f"{self._book.call(call)}: version")
        with self._lock:
            versions = [self._counts[name] if version is None else int(version) for name in names]
            guards = self._log.guards(names, versions)
            for name, at in zip(names, versions, strict=True):
                failed = self._log.failed(name, at)
                if failed is not None:
                    return versions, [self._failure(failed)]
        return versions, guards

    def are_seen(self, names: Sequence[str]) -> bool:
        """Whether all of these keys have told which step they are at, as far as the slot pushes them."""
        return self._unseen.isdisjoint(names)

    def look(self, names: Sequence[str], highest: Array) -> None:
        """Raises StoreRefusedError where a key has seen more steps of this slot than this process has begun: it was
        pushed by a process before this one, and what is pushed again would count for nothing."""
        for name, version in zip(names, highest.tolist(), strict=True):
            if name in self._unseen and version > self._counts[name]:
                told = f"it has seen {version} steps of this slot, and this process has begun {self._counts[name]}"
                raise StoreRefusedError(
                    f"{self._book.where('pull', user_key(name))}: {told}: another one was here before it, and what is "
                    f"pushed again counts for nothing; to go on, connect with step={version}, and with a higher "
                    "incarnation= where the other may still live; to start over, restart the shards"
                )
        self._unseen.difference_update(names)

    def _check_none_refused(self, call: str, name: str, version: int) -> None:
        """Raises StoreRefusedError where a step of the key before `version` was refused: until it is pushed again no
        step behind it applies, and what was pushed in it is nowhere."""
        refused = self._log.refused(name, version)
        if refused is not None:
            raise StoreRefusedError(f"{self._book.where(call, user_key(name))}: {_again(refused)}")

    def _failure(self, failed: FailedPush) -> Future[Any]:
        """A future that has failed as the push did. Where a shard has been lost for good since, it says so."""
        future: Future[Any] = Future()
        error = failed.error
        if isinstance(error, StoreError):
            lost = next((link.trouble for link in self._store.statistics().links if link.refused), None)
            since = "" if lost is None or failed.is_refused else f"; since then: {lost}"
            error = type(error)(f"{_again(failed)}{since}")
        future.set_exception(error)
        return future


def check_number(number: int | None, where: str, *, may_lack: bool = True) -> None:
    """Raises StoreRefusedError for what is no step, or version, that there can be."""
    if number is None and may_lack:
        return
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < MAX_STEP:
        raise StoreRefusedError(f"{where}: a number from 0 to 2**62 - 1, not {number!r}")


def _again(failed: FailedPush) -> str:
    """What is to be done about it."""
    return f"step {failed.step} has to be pushed again, with step={failed.step}; its push failed: {failed.error}"
