"""A device that stands in for a GPU: its arrays are those of `strict_arrays`, and copies to the host come later."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numpy as np

from strict_arrays import StrictArray, strict, to_device, to_host

Array = Any


class StrictDevice:
    """Counts what crosses. `broken` makes every copy to the host fail."""

    name = "strict:0"
    xp = strict

    def __init__(self, *, broken: bool = False) -> None:
        self.sent = 0
        self.brought: list[tuple[int, ...]] = []
        """Shapes of what was brought to the host."""
        self._broken = broken
        self._here = threading.local()
        self._copies: SimpleQueue[tuple[list[Array], Future[list[Array]]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._complete, daemon=True)
        self._thread.start()

    @contextmanager
    def use(self) -> Iterator[None]:
        before = getattr(self._here, "used", False)
        self._here.used = True
        yield
        self._here.used = before

    def to_device(self, array: Array) -> Array:
        assert isinstance(array, np.ndarray), f"{type(array).__name__} is no host's array"
        self.sent += 1
        return to_device(array)

    upload = to_device

    def to_host(self, array: Array) -> Array:
        assert isinstance(array, StrictArray), f"{type(array).__name__} is no device's array"
        return to_host(array).copy()

    def bring(self, arrays: Sequence[Array]) -> Future[list[Array]]:
        future: Future[list[Array]] = Future()
        self.brought += [array.shape for array in arrays]
        self._copies.put(([self.to_host(array) for array in arrays], future))
        return future

    def synchronize(self) -> None:
        pass

    @property
    def title(self) -> str:
        return self.name

    def allow_tf32(self, allowed: bool) -> bool:
        return True

    def memory(self) -> int:
        return 0

    def close(self) -> None:
        self._copies.put(None)
        self._thread.join(10)

    def _complete(self) -> None:
        while (copy := self._copies.get()) is not None:
            arrays, future = copy
            if self._broken:
                future.set_exception(RuntimeError("the copy broke"))
            else:
                future.set_result([np.array(array, order="C") for array in arrays])
