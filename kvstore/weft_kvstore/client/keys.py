"""Pushes and pulls of dense keys, and the residuals that a slot owes of them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from operator import attrgetter
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays import FEW, Array, bytes_of
from weft_kvstore.client.operation import (
    CALLS,
    AskedKeys,
    Gives,
    Link,
    Operation,
    PullOperation,
    SendOperation,
    SentRun,
)
from weft_kvstore.client.plan import EncodedRun, GradientEncoders, KeyPlan, KeySet
from weft_kvstore.client.runs import Landing, PlanRun, source_of
from weft_kvstore.compression.codecs import PayloadError
from weft_kvstore.compression.slices import SliceEncoder
from weft_kvstore.futures import StoreFuture
from weft_kvstore.same_host.peers import GivenArrays, are_given
from weft_kvstore.sharding import Routing
from weft_kvstore.step_outcome import LossScale
from weft_kvstore.store import Pulled
from weft_kvstore.wire.codec import ProtocolError, ValueRun
from weft_kvstore.wire.messages import PayloadKind, Reading, SentEntry
from weft_kvstore.wire.outbox import CALL_PRIORITY, OutRun, Source

# --- Pushes and pulls of whole values, of one key or of many at once --------------------------------------------------
# What is the same in every call of the same keys is in their plan; a call does nothing for each slice.


_FIRST = attrgetter("first")
_GRADIENT: Final = PayloadKind.GRADIENT
_NONE_YET: Final = np.empty((0, 0), np.int64)
_BEYOND: Final = np.iinfo(np.int64).max


class KeyPayload:
    """What a call sends of all of some keys: gradients of a step, or values at a version. `arrays`, in the keys' order,
    are the caller's and kept until the end. `array`: which of a key's arrays they are, where they are restored."""

    __slots__ = ("_begun", "_encoded", "_encoders", "_in_place", "_of_keys", "array", "arrays", "keys", "kind", "step")

    def __init__(self, kind: PayloadKind, keys: KeySet, step: int, arrays: Sequence[Array]) -> None:
        self.kind = kind
        self.keys = keys
        self.step = step
        self.arrays = arrays
        self.array = 0
        self._encoders: GradientEncoders | None = None
        self._of_keys: Sequence[SliceEncoder | None] = ()
        self._encoded: list[EncodedRun] = []
        self._begun = False
        self._in_place = False

    def look(self, memory: GivenArrays) -> None:
        """Finds out whether its arrays are the store's own."""
        self._in_place = self.kind is _GRADIENT and are_given(memory.gradients, self.keys.places, self.arrays)

    def use(self, encoders: GradientEncoders) -> None:
        """For gradients that travel encoded."""
        if self.kind is _GRADIENT:
            self._encoders = encoders

    def runs(self, plan: KeyPlan, owner: Operation) -> dict[int, list[SentRun]]:
        """All of it as runs of `owner`, by shard. Raises MemoryError, and StoreRefusedError where it cannot be encoded
        now."""
        keys, arrays, number = self.keys, self.arrays, owner.number
        if plan.has_pushed and self._encoders is not None:
            self._of_keys = self._encoders.begin(keys, self.step)
            self._begun = True
        ahead = owner.priority * CALL_PRIORITY
        found: dict[int, list[SentRun]] = {}
        for shard, runs in plan.runs.items():
            mine = found[shard] = []
            for run in runs:
                entry = SentEntry(
                    self.kind, number, run.bucket, self.step, self.array, self._in_place and run.pushed is None
                )
                source: Source
                if self._begun and run.pushed is not None:
                    bounds, source = run.pushed.begins, self._encoded_run(run)
                else:
                    bounds, source = run.bounds, source_of(run, arrays)
                priorities = run.priorities if run.priorities is None or not ahead else run.priorities - ahead
                mine.append(
                    OutRun(
                        entry,
                        run.first,
                        bounds,
                        source,
                        priority=run.priority - ahead,
                        owner=owner,
                        priorities=priorities,
                    )
                )
        return found

    def let_go(self) -> None:
        """The call has ended."""
        self.arrays = ()
        if self._begun and self._encoders is not None:
            encoded = any(source.has_begun for source in self._encoded)
            self._encoders.ended(self.keys, self.step, encoded=encoded)
            self._begun, self._encoded = False, []

    def _encoded_run(self, run: PlanRun) -> EncodedRun:
        assert run.pushed is not None
        assert self._encoders is not None
        scale = self._encoders.scale
        source = EncodedRun(run, run.pushed, self.arrays, self._of_keys, step=self.step, scale=scale)
        self._encoded.append(source)
        return source


class PushOperation(SendOperation):
    """All of some keys, sent to their shards."""

    def __init__(self, future: Future[Any], payload: KeyPayload) -> None:
        super().__init__(future)
        self.payload = payload
        self.payload_kind = payload.kind
        if payload.kind is not _GRADIENT:
            self.sets = payload.keys.places

    def look(self, memory: GivenArrays) -> None:
        self.payload.look(memory)

    def use(self, encoders: GradientEncoders) -> None:
        self.payload.use(encoders)

    def cut(self, routing: Routing) -> dict[int, list[SentRun]]:
        return self.payload.runs(self.payload.keys.plan(routing), self)

    def let_go(self) -> None:
        super().let_go()
        self.payload.let_go()

    def __str__(self) -> str:
        call, step = CALLS[self.payload_kind]
        return f"{call} of {self.payload.keys}, {step} {self.payload.step}"


class KeyPull(PullOperation):
    """All of some keys. With `out`, C-contiguous arrays in their order, values are written there.

    `_versions` (arrays, slices) int64 has the version at which each slice of the plan came, -1 where it has not.
    """

    def __init__(self, future: Future[Any], asked: AskedKeys, out: Sequence[Array] | None = None) -> None:
        super().__init__(future)
        self.asked: AskedKeys = asked
        self.asks_of = asked.keys.places
        self._out = out
        self._plan: KeyPlan
        self._landings: list[Landing] = []
        self._versions = _NONE_YET

    def prepare(self, routing: Routing) -> dict[int, int]:
        """Makes the arrays that the caller will own. Raises MemoryError."""
        plan = self._plan = self.asked.keys.plan(routing)
        count = 1 if self.asked.names is None else len(self.asked.names)
        if self._out is None:
            self._landings = [plan.packed.make() for _ in range(count)]
        else:
            self._landings = [plan.single.over(self._out)]
        self._versions = np.empty((count, plan.total), np.int64)
        self._versions.fill(-1)  # A third of what `np.full` takes, and most pulls are small.
        if count == 1:
            return dict(plan.counts)
        return {shard: slices * count for shard, slices in plan.counts.items() if count}

    def look(self, memory: GivenArrays) -> None:
        self.in_place = self._out is not None and are_given(memory.values, self.asked.keys.places, self._out)

    def asks(self, shard: int) -> list[tuple[int, int, int]]:
        return self._plan.asks.get(shard, [])

    def write(self, shard: int, came: ValueRun) -> int:
        asked, stop = self.asked, came.first + came.count
        if came.version != asked.version:
            self.check_version(came.version)
        runs = self._plan.of_bucket.get((shard, came.bucket))
        run = None
        if runs:
            run = runs[0] if len(runs) == 1 else runs[max(bisect_right(runs, came.first, key=_FIRST) - 1, 0)]
        if run is None or came.first < run.first or stop > run.first + run.count or came.array >= len(self._landings):
            raise ProtocolError(
                f"Values.first: {_slices(came)}, array {came.array}; {self} asks shard {shard} for "
                f"{self._told(shard)} and {len(self._landings)} arrays"
            )
        if came.payload is not None:
            first = came.first - run.first
            start, end = int(run.bounds[first]), int(run.bounds[first + came.count])
            payload = self._decoded(run, came, came.payload) if came.compressed else came.payload
            if end - start != payload.nbytes:
                told = f"{_slices(came)} have {end - start} in {self}"
                raise ProtocolError(f"Values.nbytes: {payload.nbytes}, {told}")
            self._landings[came.array].copy(run.number, start, end, payload)
        elif not self.in_place:
            raise ProtocolError(f"Values.place: 1, {self} has no places for values")
        shift = run.begin - run.first
        mine = self._versions[came.array, shift + came.first : shift + stop]
        fresh = mine.tolist().count(-1) if came.count <= FEW else int(np.count_nonzero(mine < 0))
        mine[:] = came.version
        return fresh

    @property
    def may_be_compressed(self) -> bool:
        """Where training goes on with them: what is kept, or read for itself, is as the shard has it."""
        asked = self.asked
        ordinary = asked.reading is Reading.OWN and asked.gives not in {Gives.STATE, Gives.KEPT}
        return ordinary and asked.version > 0 and self._plan.has_pulled

    def _decoded(self, run: PlanRun, came: ValueRun, payload: memoryview) -> memoryview:
        """The bytes of slices that came encoded, as they are. Raises ProtocolError."""
        if run.pulled is None or not self.may_be_compressed:
            raise ProtocolError(f"Values.compressed: 1, {_slices(came)} travel as they are in {self}")
        begin, end = came.first - run.first, came.stop - run.first
        told = run.pulled.nbytes(begin, end)
        if told != payload.nbytes:
            raise ProtocolError(f"Values.nbytes: {payload.nbytes}, {_slices(came)}, encoded, have {told} in {self}")
        try:
            return bytes_of(run.pulled.decode(begin, end, payload))
        except PayloadError as error:
            raise ProtocolError(f"payload: {_slices(came)} in {self}: {error}") from error

    def result(self) -> Any:
        arrays = self._landings[0].arrays if self._landings else []
        match self.asked.gives:
            case Gives.VALUE | Gives.KEPT:
                return arrays[0]
            case Gives.VALUES:
                return arrays
            case Gives.STATE:
                return {name: of.arrays[0] for name, of in zip(self.asked.names or (), self._landings, strict=True)}
            case Gives.VERSIONS:
                return Pulled(arrays, *self._key_versions())
        raise AssertionError(self.asked.gives)

    def _told(self, shard: int) -> str:
        asked = [
            f"slices {first} to {first + count - 1} of bucket {bucket}" for bucket, first, count in self.asks(shard)[:4]
        ]
        return ", ".join(asked) or "none"

    def _key_versions(self) -> tuple[Array, Array]:
        """The lowest and the highest version of each key's slices, (keys) int64; of a key without any, the one asked
        for."""
        plan = self._plan
        lowest = np.full(len(self.asked.keys), _BEYOND, np.int64)
        highest = np.full(len(self.asked.keys), -1, np.int64)
        if plan.total:
            np.minimum.at(lowest, plan.part_positions, np.minimum.reduceat(self._versions[0], plan.part_firsts))
            np.maximum.at(highest, plan.part_positions, np.maximum.reduceat(self._versions[0], plan.part_firsts))
        none = highest < 0
        lowest[none] = highest[none] = self.asked.version
        return lowest, highest


def _slices(came: ValueRun) -> str:
    return f"slices {came.first} to {came.stop - 1} of bucket {came.bucket}"


class PushPull(KeyPull):
    """Gradients of a step, and the values that have seen it: one call, which ends with the values. They say that the
    gradients have arrived; `future.arrived` is set where the shards have said so before."""

    def __init__(
        self, future: StoreFuture[Any], payload: KeyPayload, asked: AskedKeys, out: Sequence[Array] | None = None
    ) -> None:
        super().__init__(future, asked, out)
        self.future: StoreFuture[Any] = future
        self.payload = payload
        self.runs: dict[int, list[SentRun]] = {}
        self._missing = 0

    def look(self, memory: GivenArrays) -> None:
        self.payload.look(memory)
        super().look(memory)

    def use(self, encoders: GradientEncoders) -> None:
        self.payload.use(encoders)

    def prepare(self, routing: Routing) -> dict[int, int]:
        pending = super().prepare(routing)
        self.runs = self.payload.runs(self._plan, self)
        self._missing = sum(pending.values())
        return pending

    def begin(self, link: Link) -> None:
        link.put(self.runs[link.shard])
        link.ask(self)

    def give_up(self, link: Link) -> None:
        link.withdraw(self.runs[link.shard])
        super().give_up(link)

    def delivered(self, shard: int, count: int) -> bool:
        self._missing -= count
        if self._missing <= 0 and not self.ended:  # What was refused is acknowledged too.
            self.future.arrived = True
        return False

    def resent(self, shard: int, run: SentRun) -> None:
        if not self.ended:
            self.runs[shard].append(run)

    def let_go(self) -> None:
        for runs in self.runs.values():
            for run in runs:
                run.cancelled = True  # A connection that breaks now need not bring it again.
        self.runs = {}
        self.payload.let_go()

    def __str__(self) -> str:
        return f"pushpull of {self.asked.keys}, step {self.payload.step}"


# --- What a slot owes of its gradients, for a snapshot and back -------------------------------------------------------
# It passes no socket. Pure.


class ResidualOperation(Operation):
    """Ends at once, with copies of what is owed by name; with `named`, takes that on before, and the loss scale of the
    next step."""

    def __init__(
        self,
        future: Future[Any],
        encoders: GradientEncoders,
        named: Mapping[str, Array] | None = None,
        scale: LossScale | None = None,
    ) -> None:
        super().__init__(future)
        self._encoders = encoders
        self._named = named
        self._scale = scale
        self._owed: dict[str, Array] = {}

    def prepare(self, routing: Routing) -> dict[int, int]:
        if self._named is not None:
            self._encoders.restore(self._named, self._scale)
        self._owed = self._encoders.export()
        return {}

    def begin(self, link: Link) -> None:
        raise AssertionError("no shard has a part of it")

    def give_up(self, link: Link) -> None:
        raise AssertionError("no shard has a part of it")

    def result(self) -> dict[str, Array]:
        return self._owed

    def let_go(self) -> None:
        self._named = None

    def __str__(self) -> str:
        return "export of residuals" if self._named is None else "restore of residuals"


class CaptureOperation(ResidualOperation):
    """Ends at once; `told` is told later of what is owed after the steps before `step`: `GradientEncoders.capture`."""

    def __init__(
        self,
        future: Future[Any],
        encoders: GradientEncoders,
        step: int,
        told: Callable[[dict[str, Array] | int], None],
    ) -> None:
        super().__init__(future, encoders)
        self._step = step
        self._told = told

    def prepare(self, routing: Routing) -> dict[int, int]:
        self._encoders.capture(self._step, self._told)
        return {}

    def __str__(self) -> str:
        return f"capture of residuals at step {self._step}"
