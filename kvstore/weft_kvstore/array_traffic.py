"""A user's arrays on their way between the host and wherever they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from weft_kvstore.device_copies import DeviceCopies, Place
from weft_kvstore.joined_future import joined, then
from weft_kvstore.store import Array
from weft_kvstore.user_array import is_on_device

R = TypeVar("R")


class ArrayTraffic:
    """Arrays of the host pass at once; CuPy is loaded, and a thread started, when the first one of a GPU comes."""

    def __init__(self) -> None:
        self._copies: DeviceCopies | None = None
        self._lock = threading.Lock()
        """Held while `_copies` is made."""

    def close(self) -> None:
        """Ends after the copies that were begun. Idempotent."""
        with self._lock:
            copies = self._copies
        if copies is not None:
            copies.close()

    def bring(self, values: list[Any], begin: Callable[[list[Array]], Future[R]]) -> Future[R]:
        """Begins with these arrays once all of them are on the host: at once where they are."""
        there = [place for place, value in enumerate(values) if is_on_device(value)]
        if not there:
            return begin(values)

        def brought(hosts: list[Array]) -> Future[R]:
            found = dict(zip(there, hosts, strict=True))
            return begin([found.get(place, value) for place, value in enumerate(values)])

        return then(self._device().to_host([values[place] for place in there]), brought)

    def places(self, outs: Sequence[Any]) -> dict[int, Place]:
        """Those of `outs` that are on a GPU, by their place in the list."""
        return {place: self._device().reserve(out) for place, out in enumerate(outs) if is_on_device(out)}

    def delivered(
        self, pulled: Future[list[Array]], outs: Sequence[Any], places: dict[int, Place], *, single: bool
    ) -> Future[Any]:
        """What was pulled, in the caller's own arrays where some were given."""

        def given_back(values: list[Array]) -> Any:
            found = [value if out is None else out for value, out in zip(values, outs, strict=True)]
            return found[0] if single else found

        if not places:
            return joined([pulled], lambda values: given_back(values[0]))

        def copied(values: list[Array]) -> Future[Any]:
            copies = self._device().to_device([values[place] for place in places], list(places.values()))
            return joined([copies], lambda _: given_back(values))

        return then(pulled, copied)

    def _device(self) -> DeviceCopies:
        with self._lock:
            if self._copies is None:
                self._copies = DeviceCopies()
            return self._copies
