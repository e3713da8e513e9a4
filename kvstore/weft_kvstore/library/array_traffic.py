"""A user's arrays on their way between the host and wherever they are."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from weft_kvstore.arrays.array import Array
from weft_kvstore.library.device_copies import DeviceCopies, Target
from weft_kvstore.library.user_array import is_on_device
from weft_kvstore.runtime.joined_future import joined, then
from weft_kvstore.runtime.store_future import on_end

R = TypeVar("R")


class ArrayTraffic:
    """Arrays of the host pass at once; CuPy is loaded, and a thread started, when the first one of a GPU comes.

    Of one key, what was brought first begins first: where an array of a GPU is under way, what comes after it waits
    behind it, in the order of the copies. `_under_way` counts by key what has not begun.
    """

    def __init__(self) -> None:
        self._copies: DeviceCopies | None = None
        self._under_way: Counter[str] = Counter()
        self._lock = threading.Lock()
        """Held while `_copies` is made, and while what is under way is counted."""

    def close(self) -> None:
        """Ends after the copies that were begun. Idempotent."""
        with self._lock:
            copies = self._copies
        if copies is not None:
            copies.close()

    def bring(self, names: Sequence[str], values: list[Any], begin: Callable[[list[Array]], Future[R]]) -> Future[R]:
        """Begins with these arrays once all of them are on the host and all of before, of these keys, has begun: at
        once where that is so. What raises has begun nothing."""
        there = [number for number, value in enumerate(values) if is_on_device(value)]
        if not there and (not self._under_way or self._under_way.keys().isdisjoint(names)):
            return begin(values)

        def brought(hosts: list[Array]) -> Future[R]:
            found = dict(zip(there, hosts, strict=True))
            return begin([found.get(number, value) for number, value in enumerate(values)])

        copied = self._device().to_host([values[number] for number in there])
        with self._lock:
            self._under_way.update(names)
        begun = then(copied, brought)
        on_end(copied, lambda _: self._has_begun(names))  # After `brought`, or where there is none.
        return begun

    def targets(self, outs: Sequence[Any]) -> dict[int, Target]:
        """Those of `outs` that are on a GPU, by their number in the list."""
        return {number: self._device().reserve(out) for number, out in enumerate(outs) if is_on_device(out)}

    def delivered(
        self, pulled: Future[list[Array]], outs: Sequence[Any], targets: dict[int, Target], *, single: bool
    ) -> Future[Any]:
        """What was pulled, in the caller's own arrays where some were given."""

        def given_back(values: list[Array]) -> Any:
            found = [value if out is None else out for value, out in zip(values, outs, strict=True)]
            return found[0] if single else found

        if not targets:
            return joined([pulled], lambda values: given_back(values[0]))

        def copied(values: list[Array]) -> Future[Any]:
            copies = self._device().to_device([values[number] for number in targets], list(targets.values()))
            return joined([copies], lambda _: given_back(values))

        return then(pulled, copied)

    def _has_begun(self, names: Sequence[str]) -> None:
        with self._lock:
            self._under_way.subtract(names)
            for name in names:
                if not self._under_way[name]:
                    del self._under_way[name]

    def _device(self) -> DeviceCopies:
        with self._lock:
            if self._copies is None:
                self._copies = DeviceCopies()
            return self._copies
