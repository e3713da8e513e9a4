"""What a client has begun and not ended: pushes, pulls, barriers. Pure; the future belongs to the hands."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

import numpy as np

from weft_kvstore.buffers import bytes_of
from weft_kvstore.cargo import Cargo
from weft_kvstore.codec import ProtocolError
from weft_kvstore.messages import MAX_RUNS
from weft_kvstore.outbox import OutSlice
from weft_kvstore.routing import KeySlices, Routing
from weft_kvstore.store import Array

_CALLS: Final = {Cargo.GRADIENT: ("push", "step"), Cargo.VALUE: ("set", "version")}


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

    def let_go(self) -> None:
        """It has ended: its parts, which know it, are forgotten, so that its arrays go at once and not when the
        collector of cycles comes round."""

    def __str__(self) -> str:
        return f"{self.kind} of step {self.step}"


class SendOperation(Operation):
    """A gradient, or a value to set, on its way. `slices` are all its parts, by shard, once it was cut."""

    rows = False

    def __init__(self, future: Future[Any], name: str, place: int, step: int, cargo: Cargo) -> None:
        super().__init__(future, step)
        self.name = name
        self.place = place
        self.cargo = cargo
        self.slices: dict[int, list[OutSlice]] = {}

    @abstractmethod
    def cut(self, routing: Routing, priority: int) -> None:
        """Makes `slices`. Raises MemoryError."""

    def let_go(self) -> None:
        self.slices = {}

    def __str__(self) -> str:
        call, step = _CALLS[self.cargo]
        what = f"{call} of rows" if self.rows else call
        return f"{what} of key {self.name!r}, {step} {self.step}"


class PushOperation(SendOperation):
    """All of a key; `array` is the caller's and kept until the end."""

    kind = "push"

    def __init__(self, future: Future[Any], name: str, place: int, step: int, array: Array, *, cargo: Cargo) -> None:
        super().__init__(future, name, place, step, cargo)
        self.array = array

    def cut(self, routing: Routing, priority: int) -> None:
        cut = routing.cuts[self.place]
        base = bytes_of(self.array)
        entry = (self.cargo, self.number, self.place, self.step, 0)
        self.slices = {
            shard: [
                OutSlice(entry, index, base, cut.start(index), cut.start(index + 1), priority=priority, owner=self)
                for index in run
            ]
            for shard, run in routing.runs[self.place].items()
        }


class PullOperation(Operation):
    """Values, or the rule's state, on their way: `names` are the state's arrays, None for the value itself."""

    kind = "pull"
    rows = False

    def __init__(
        self, future: Future[Any], name: str, place: int, version: int, names: Sequence[str] | None, *, settled: bool
    ) -> None:
        super().__init__(future, version)
        self.name = name
        self.place = place
        self.version = version
        self.names = names
        self.settled = settled
        self.seen: set[tuple[int, int, int]] = set()

    @property
    def array_count(self) -> int:
        return 1 if self.names is None else len(self.names)

    @abstractmethod
    def asked(self, routing: Routing) -> dict[int, int]:
        """How many parts will come from each shard that has some."""

    @abstractmethod
    def write(self, shard: int, array: int, first: int, count: int, payload: memoryview) -> int:
        """Copies adjacent parts into place. Returns how many of them were new. Raises ProtocolError."""

    def fresh(self, shard: int, array: int, first: int, count: int) -> int:
        """Notes which parts have come. Returns how many of them were new."""
        found = {(shard, array, index) for index in range(first, first + count)} - self.seen
        self.seen |= found
        return len(found)

    def named(self, arrays: Sequence[Array]) -> Array | Mapping[str, Array]:
        return arrays[0] if self.names is None else dict(zip(self.names, arrays, strict=True))

    def __str__(self) -> str:
        what = "pull" if self.names is None else "pull of the state"
        return f"{what} of {'rows of ' if self.rows else ''}key {self.name!r}, version {self.step}"


class KeyPull(PullOperation):
    """All of a key."""

    def __init__(
        self,
        future: Future[Any],
        name: str,
        place: int,
        version: int,
        names: Sequence[str] | None,
        *,
        settled: bool,
        cut: KeySlices,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
    ) -> None:
        """Makes the arrays that the caller will own. Raises MemoryError."""
        super().__init__(future, name, place, version, names, settled=settled)
        self._cut = cut
        self._arrays: list[Array] = [np.empty(shape, dtype) for _ in range(self.array_count)]
        self._bytes = [bytes_of(array) for array in self._arrays]

    def asked(self, routing: Routing) -> dict[int, int]:
        arrays = self.array_count
        return {shard: len(run) * arrays for shard, run in routing.runs[self.place].items() if arrays}

    def write(self, shard: int, array: int, first: int, count: int, payload: memoryview) -> int:
        if array >= len(self._bytes) or first + count > self._cut.count:
            raise ProtocolError(
                f"Values.first: slices {first} to {first + count - 1} of array {array}; key {self.name!r} has "
                f"{self._cut.count} slices and {len(self._bytes)} arrays"
            )
        start, stop = self._cut.start(first), self._cut.start(first + count)
        if stop - start != payload.nbytes:
            raise ProtocolError(f"Values.nbytes: {payload.nbytes}, the slices of {self.name!r} have {stop - start}")
        self._bytes[array][start:stop] = payload
        return self.fresh(0, array, first, count)

    def result(self) -> Any:
        return self.named(self._arrays)


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
