"""A job's part on one shard: its slices, and the pulls that wait for their versions. Pure.

Used by the shard behind its sockets and by the local store without any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from weft_graph.ir import Initializer
from weft_graph.program import Update
from weft_kernels.initializers import first_values
from weft_kernels.rule import Rule
from weft_kvstore.buffers import bytes_of
from weft_kvstore.check import rule_of
from weft_kvstore.codec import ProtocolError
from weft_kvstore.description import KeyDescription, StoreDescription
from weft_kvstore.routing import KeySlices, routing_of
from weft_kvstore.slice_state import Held, KeySpec, SliceState
from weft_kvstore.store import Array

FirstValues: TypeAlias = Callable[[KeyDescription, int, int], Array]
"""first(key, start, stop): elements start to stop of the key's first value."""


class PullWait:
    """A pull on this shard. `link` is whoever asked; `open` has the numbers of slices that are not answered."""

    __slots__ = ("dropped", "key", "link", "open", "request", "state", "version")

    def __init__(self, link: Any, request: int, key: int, version: int, *, state: bool) -> None:
        self.link = link
        self.request = request
        self.key = key
        self.version = version
        self.state = state
        self.open: set[int] = set()
        self.dropped = False


@dataclass(frozen=True, slots=True)
class _KeyPart:
    """The slices of one key that this shard has: numbers `first` and on."""

    spec: KeySpec
    cut: KeySlices
    first: int
    slices: tuple[SliceState, ...]


class JobShard:
    """Shard number `shard` of a store. Makes the first values of its slices; their memory is all it holds.

    Raises DescriptionError for a rule that there is not, ValueError for an initializer that there is not.
    """

    def __init__(
        self, description: StoreDescription, shard: int, *, rule: Rule | None = None, first: FirstValues | None = None
    ) -> None:
        self.description = description
        self.shard = shard
        self._rule = rule or rule_of(description)
        make = first or _first_values_of(description.seed)
        routing = routing_of(description)
        self._parts: dict[int, _KeyPart] = {}
        for place, (key, cut, runs) in enumerate(zip(description.keys, routing.cuts, routing.runs, strict=True)):
            if shard in runs:
                self._parts[place] = self._part(place, key, cut, runs[shard], make)

    def accept(
        self, slot: int, key: int, step: int, payload: memoryview, *, first: int, count: int
    ) -> list[SliceState]:
        """Takes in a run of gradients; the payload's memory is taken over where it is writable.

        Returns the slices that may now merge. Raises ProtocolError for a run that this shard does not have, and
        PushRefusedError where the push contradicts what is there.
        """
        part = self._run(key, first, count)
        told = part.cut.length(first, count)
        if told != payload.nbytes:
            raise ProtocolError(
                f"Push.nbytes: {payload.nbytes} for {count} slices from {first} of key {part.spec.key!r}, not {told}"
            )
        slices = part.slices[first - part.first : first - part.first + count]
        for one in slices:  # all before any: what is refused changes nothing
            one.check(slot, step, pushes=True)
        ready: list[SliceState] = []
        begin = part.cut.start(first)
        for one in slices:
            start, stop = part.cut.start(one.index) - begin, part.cut.start(one.index + 1) - begin
            if one.accept(slot, step, _writable(payload[start:stop], part.spec.dtype)):
                ready.append(one)
        return ready

    @property
    def nbytes(self) -> int:
        """Bytes of the values that this shard has."""
        return sum(one.nbytes for part in self._parts.values() for one in part.slices)

    def slice_count(self, key: int) -> int:
        """How many slices of the key this shard has."""
        part = self._parts.get(key)
        return len(part.slices) if part is not None else 0

    def declare_nothing(self, slot: int, step: int, keys: Iterable[int]) -> list[SliceState]:
        """The slot has nothing for these keys in this step. Returns and raises as `accept` does."""
        slices: list[SliceState] = []
        for key in keys:
            if not key < len(self.description.keys):
                raise ProtocolError(f"Barrier.nothing: key {key}, there are {len(self.description.keys)}")
            part = self._parts.get(key)
            slices.extend(part.slices if part is not None else ())
        for one in slices:  # all before any: what is refused changes nothing
            one.check(slot, step, pushes=False)
        return [one for one in slices if one.accept(slot, step, None)]

    def pull(self, wait: PullWait) -> list[SliceState]:
        """Takes in a pull. Returns the slices that can be answered now; for the others it waits."""
        part = self._parts.get(wait.key)
        if part is None:
            raise ProtocolError(f"Pull.key: {wait.key} has no slice on shard {self.shard}")
        ready: list[SliceState] = []
        for one in part.slices:
            if one.is_at(wait.version):
                ready.append(one)
            else:
                wait.open.add(one.index)
                one.waits.append(wait)
        return ready

    @staticmethod
    def answered(one: SliceState) -> list[PullWait]:
        """The pulls that a slice whose version has moved can answer; it keeps the others."""
        if not one.waits:
            return []
        ready = [wait for wait in one.waits if not wait.dropped and one.is_at(wait.version)]
        one.waits = [wait for wait in one.waits if not wait.dropped and not one.is_at(wait.version)]
        for wait in ready:
            wait.open.discard(one.index)
        return ready

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: its unmerged pushes are forgotten."""
        for part in self._parts.values():
            for one in part.slices:
                one.replace(slot)

    def waits_for(self, wait: PullWait) -> tuple[str, list[int]]:
        """What an open pull waits for, in words, and the slots that are missing; nothing where all was answered."""
        part = self._parts[wait.key]
        for index in sorted(wait.open):
            one = part.slices[index - part.first]
            if not one.is_at(wait.version):
                missing = one.missing()
                slots = ", ".join(map(str, missing)) or "none: it is being merged"
                return (
                    f"key {part.spec.key!r} has seen {one.version} steps; step {one.version} waits for slots {slots}",
                    missing,
                )
        return "every slice was answered", []

    def _run(self, key: int, first: int, count: int) -> _KeyPart:
        part = self._parts.get(key)
        if part is None:
            raise ProtocolError(f"Push.key: {key} has no slice on shard {self.shard}")
        last = part.first + len(part.slices)
        if not (part.first <= first and first + count <= last):
            raise ProtocolError(
                f"Push.first: slices {first} to {first + count - 1} of key {part.spec.key!r}; "
                f"shard {self.shard} has {part.first} to {last - 1}"
            )
        return part

    def _part(self, place: int, key: KeyDescription, cut: KeySlices, run: range, make: FirstValues) -> _KeyPart:
        dtype = np.dtype(key.dtype)
        numbers = {name: value for name, value in self.description.hyper.items() if isinstance(value, int | float)}
        hyper = {**self._rule.hyper, **numbers}
        merge, rule = self.description.merge, self._rule
        spec = KeySpec(key.key, place, key.priority, dtype, key.slots, key.update, merge, rule, hyper)
        begin, size = cut.start(run.start), cut.length(run.start, len(run))
        values = np.ascontiguousarray(make(key, begin // dtype.itemsize, (begin + size) // dtype.itemsize), dtype)
        names = self._rule.state if key.update is Update.RULE else ()
        state = {name: np.zeros(values.size, dtype) for name in names}
        bases = {name: bytes_of(array) for name, array in state.items()}
        base = bytes_of(values)
        slices: list[SliceState] = []
        for index in run:
            start, stop = cut.start(index) - begin, cut.start(index + 1) - begin
            cutting = slice(start // dtype.itemsize, stop // dtype.itemsize)
            own = {name: Held(array[cutting], bases[name], start) for name, array in state.items()}
            slices.append(SliceState(spec, index, Held(values[cutting], base, start), own))
        return _KeyPart(spec, cut, run.start, tuple(slices))


def _writable(payload: memoryview, dtype: np.dtype[Any]) -> Array:
    """The payload as an array that a merge may write: itself where it can be, else a copy."""
    array: Array = np.frombuffer(payload, dtype)
    return array if array.flags.writeable and array.flags.aligned else array.copy()


def _first_values_of(seed: int) -> FirstValues:
    def make(key: KeyDescription, start: int, stop: int) -> Array:
        attributes: Mapping[str, float] = dict(key.initializer.attributes)
        initializer = Initializer(key.initializer.op_type, attributes)
        return first_values(initializer, seed=seed, key=key.key, start=start, stop=stop, dtype=np.dtype(key.dtype))

    return make
