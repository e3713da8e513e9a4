"""What a client has begun and not ended: pushes, pulls, barriers. Pure; the future belongs to the hands."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from weft_kvstore.buffers import bytes_of
from weft_kvstore.codec import ProtocolError
from weft_kvstore.messages import MAX_RUNS
from weft_kvstore.outbox import OutSlice
from weft_kvstore.routing import KeySlices
from weft_kvstore.store import Array


class Operation:
    """`pending[shard]` counts what is missing from each shard; the operation ends when nothing is.

    `because` is what shards said that it waits for. `number` is the request's number on the wire.
    """

    kind = "operation"

    def __init__(self, future: Future[Any], step: int) -> None:
        self.future = future
        self.step = step
        self.number = 0
        self.pending: dict[int, int] = {}
        self.because: dict[int, str] = {}
        self.ended = False

    def settle(self, shard: int, count: int = 1) -> bool:
        """So many of a shard's parts have come. True if that was the last of all."""
        left = self.pending.get(shard, 0) - count
        if left > 0:
            self.pending[shard] = left
        else:
            self.pending.pop(shard, None)
            self.because.pop(shard, None)
        return not self.pending

    def result(self) -> Any:
        """What the future ends with."""
        return None

    def __str__(self) -> str:
        return f"{self.kind} of step {self.step}"


class PushOperation(Operation):
    """A gradient on its way; `array` is the caller's and kept until the end. `slices` are all its slices."""

    kind = "push"

    def __init__(self, future: Future[Any], name: str, place: int, step: int, array: Array) -> None:
        super().__init__(future, step)
        self.name = name
        self.place = place
        self.array = array
        self.slices: list[OutSlice] = []

    def __str__(self) -> str:
        return f"push of key {self.name!r}, step {self.step}"


class PullOperation(Operation):
    """A value, or the rule's state, on its way: `names` are the state's arrays, none for the value itself."""

    kind = "pull"

    def __init__(
        self,
        future: Future[Any],
        name: str,
        place: int,
        version: int,
        *,
        cut: KeySlices,
        names: Sequence[str] | None,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
    ) -> None:
        """Makes the arrays that the caller will own. Raises MemoryError."""
        super().__init__(future, version)
        self.name = name
        self.place = place
        self.version = version
        self.names = names
        self._cut = cut
        count = 1 if names is None else len(names)
        self._arrays: list[Array] = [np.empty(shape, dtype) for _ in range(count)]
        self._bytes = [bytes_of(array) for array in self._arrays]
        self._seen: set[tuple[int, int]] = set()

    def write(self, array: int, first: int, count: int, payload: memoryview) -> int:
        """Copies adjacent slices into place. Returns how many of them were new. Raises ProtocolError."""
        if array >= len(self._bytes) or first + count > self._cut.count:
            raise ProtocolError(
                f"Values.first: slices {first} to {first + count - 1} of array {array}; key {self.name!r} has "
                f"{self._cut.count} slices and {len(self._bytes)} arrays"
            )
        start, stop = self._cut.start(first), self._cut.start(first + count)
        if stop - start != payload.nbytes:
            raise ProtocolError(f"Values.nbytes: {payload.nbytes}, the slices of {self.name!r} have {stop - start}")
        self._bytes[array][start:stop] = payload
        fresh = {(array, index) for index in range(first, first + count)} - self._seen
        self._seen |= fresh
        return len(fresh)

    def result(self) -> Any:
        return self._arrays[0] if self.names is None else dict(zip(self.names, self._arrays, strict=True))

    def __str__(self) -> str:
        what = "pull" if self.names is None else "pull of the state"
        return f"{what} of key {self.name!r}, version {self.step}"


class BarrierOperation(Operation):
    """A barrier; `nothing` are the places of keys that the slot has nothing for."""

    kind = "barrier"

    def __init__(self, future: Future[Any], step: int, nothing: list[int]) -> None:
        super().__init__(future, step)
        self.nothing = nothing

    @property
    def parts(self) -> int:
        """How many messages it takes."""
        return max(-(-len(self.nothing) // MAX_RUNS), 1)
