"""Pushes and pulls of dense keys, and the residuals that a slot owes of them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from operator import attrgetter
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays import Array, bytes_of
from weft_kvstore.compression.codecs import PayloadError
from weft_kvstore.compression.slices import SliceEncoder
from weft_kvstore.operations.encoding import EncodedRun, GradientEncoders
from weft_kvstore.operations.operation import (
    AskedKeys,
    Gives,
    Link,
    Operation,
    PullOperation,
    SendOperation,
    SentKeys,
    SentRun,
)
from weft_kvstore.operations.plan import KeyPlan
from weft_kvstore.operations.runs import Landing, PlanRun, source_of
from weft_kvstore.runtime.futures import StoreFuture
from weft_kvstore.same_host.peers import GivenArrays, are_given
from weft_kvstore.sharding import Routing
from weft_kvstore.store import Pulled
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import PayloadKind, Reading, SentEntry
from weft_kvstore.wire.out_run import CALL_PRIORITY, OutRun, Source
from weft_kvstore.wire.runs import ValueRun

# --- Pushes and pulls of whole values, of one key or of many at once --------------------------------------------------
# What is the same in every call of the same keys is in their plan; a call does nothing for each slice.


_FIRST = attrgetter("first")
_BEYOND: Final = np.iinfo(np.int64).max


class PushOperation(SendOperation):
    """All of some keys; `arrays`, in their order, are the caller's and kept until the end. `array`: which of a key's
    arrays they are, where they are restored."""

    array = 0

    def __init__(self, future: Future[Any], sent: SentKeys, arrays: Sequence[Array]) -> None:
        super().__init__(future, sent)
        self.arrays = arrays
        self.owner: Operation | None = None
        """The operation that it is part of, which is told of its runs; None: itself."""
        self._encoders: GradientEncoders | None = None
        self._of_keys: Sequence[SliceEncoder | None] = ()
        self._encoded: list[EncodedRun] = []
        self._begun = False
        self._in_place = False

    def look(self, memory: GivenArrays) -> None:
        gradients = self.sent.payload_kind is PayloadKind.GRADIENT
        self._in_place = gradients and are_given(memory.gradients, self.sent.keys.places, self.arrays)

    def use(self, encoders: GradientEncoders) -> None:
        self._encoders = encoders

    def cut(self, routing: Routing) -> dict[int, list[SentRun]]:
        plan = self.sent.keys.plan(routing)
        if plan.has_pushed and self.sent.payload_kind is PayloadKind.GRADIENT and self._encoders is not None:
            self._of_keys = self._encoders.begin(self.sent.keys, self.sent.step)
            self._begun = True
        return {shard: [self._out_run(run) for run in runs] for shard, runs in plan.runs.items()}

    def let_go(self) -> None:
        super().let_go()
        self.arrays = ()
        if self._begun and self._encoders is not None:
            encoded = any(source.has_begun for source in self._encoded)
            self._encoders.ended(self.sent.keys, self.sent.step, encoded=encoded)
            self._begun, self._encoded = False, []

    def _out_run(self, run: PlanRun) -> SentRun:
        place = self._in_place and run.pushed is None
        entry = SentEntry(self.sent.payload_kind, self.number, run.bucket, self.sent.step, self.array, place)
        bounds, source = self._bytes(run)
        priority, priorities = run.priority, run.priorities
        if self.priority:
            ahead = self.priority * CALL_PRIORITY
            priority, priorities = priority - ahead, None if priorities is None else priorities - ahead
        return OutRun(
            entry, run.first, bounds, source, priority=priority, owner=self.owner or self, priorities=priorities
        )

    def _bytes(self, run: PlanRun) -> tuple[Array, Source]:
        """Where the run's slices begin and end among its bytes, and the bytes."""
        if not self._begun or run.pushed is None or self._encoders is None:
            return run.bounds, source_of(run, self.arrays)
        scale = self._encoders.scale
        source = EncodedRun(run, run.pushed, self.arrays, self._of_keys, step=self.sent.step, scale=scale)
        self._encoded.append(source)
        return run.pushed.begins, source


class KeyPull(PullOperation):
    """All of some keys. With `out`, C-contiguous arrays in their order, values are written there.

    `_versions` (arrays, slices) int64 has the version at which each slice of the plan came, -1 where it has not.
    """

    def __init__(self, future: Future[Any], asked: AskedKeys, out: Sequence[Array] | None = None) -> None:
        super().__init__(future, asked)
        self._out = out
        self._plan: KeyPlan | None = None
        self._landings: list[Landing] = []
        self._versions = np.empty((0, 0), np.int64)

    def prepare(self, routing: Routing) -> dict[int, int]:
        """Makes the arrays that the caller will own. Raises MemoryError."""
        plan = self.asked.keys.plan(routing)
        count = self.asked.array_count
        self._plan = plan
        if self._out is None:
            self._landings = [plan.packed.make() for _ in range(count)]
        else:
            self._landings = [plan.single.over(self._out)]
        self._versions = _unseen(count, plan.total)
        return {shard: slices * count for shard, slices in plan.counts.items() if count}

    def look(self, memory: GivenArrays) -> None:
        self.in_place = self._out is not None and are_given(memory.values, self.asked.keys.places, self._out)

    def asks(self, shard: int) -> list[tuple[int, int, int]]:
        runs = self._plan.runs.get(shard, ()) if self._plan is not None else ()
        return [(run.bucket, run.first, run.count) for run in runs]

    def write(self, shard: int, came: ValueRun) -> int:
        self.check_version(came.version)
        run = self._run_of(shard, came.bucket, came.first)
        if run is None or came.stop > run.stop or came.array >= len(self._landings):
            raise ProtocolError(
                f"Values.first: {_slices(came)}, array {came.array}; {self} asks shard {shard} for "
                f"{self._told(shard)} and {len(self._landings)} arrays"
            )
        if came.payload is not None:
            self._copy(run, came, came.payload)
        elif not self.in_place:
            raise ProtocolError(f"Values.place: 1, {self} has no places for values")
        mine = self._versions[came.array, run.begin - run.first + came.first : run.begin - run.first + came.stop]
        fresh = int(np.count_nonzero(mine < 0))
        mine[:] = came.version
        return fresh

    def _copy(self, run: PlanRun, came: ValueRun, payload: memoryview) -> None:
        start, stop = int(run.bounds[came.first - run.first]), int(run.bounds[came.stop - run.first])
        if came.compressed:
            payload = self._decoded(run, came, payload)
        if stop - start != payload.nbytes:
            told = f"{_slices(came)} have {stop - start} in {self}"
            raise ProtocolError(f"Values.nbytes: {payload.nbytes}, {told}")
        self._landings[came.array].copy(run.number, start, stop, payload)

    @property
    def may_be_compressed(self) -> bool:
        """Where training goes on with them: what is kept, or read for itself, is as the shard has it."""
        asked = self.asked
        ordinary = asked.reading is Reading.OWN and asked.gives not in {Gives.STATE, Gives.KEPT}
        return ordinary and asked.version > 0 and self._plan is not None and self._plan.has_pulled

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
        arrays = [landing.arrays for landing in self._landings]
        match self.asked.gives:
            case Gives.VALUE | Gives.KEPT:
                return arrays[0][0]
            case Gives.VALUES:
                return arrays[0]
            case Gives.STATE:
                return {name: of[0] for name, of in zip(self.asked.names, arrays, strict=True)}
            case Gives.VERSIONS:
                return Pulled(arrays[0], *self._key_versions())
        raise AssertionError(self.asked.gives)

    def _run_of(self, shard: int, bucket: int, first: int) -> PlanRun | None:
        """The run of the plan that a slice lies in, or begins beyond."""
        runs = self._plan.of_bucket.get((shard, bucket)) if self._plan is not None else None
        if runs is None:
            return None
        place = bisect_right(runs, first, key=_FIRST) - 1 if len(runs) > 1 else 0
        run = runs[place]
        return run if place >= 0 and run.first <= first else None

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
        if plan is not None and plan.total:
            np.minimum.at(lowest, plan.part_positions, np.minimum.reduceat(self._versions[0], plan.part_firsts))
            np.maximum.at(highest, plan.part_positions, np.maximum.reduceat(self._versions[0], plan.part_firsts))
        none = highest < 0
        lowest[none] = highest[none] = self.asked.version
        return lowest, highest


def _unseen(arrays: int, slices: int) -> Array:
    """-1 for each slice of each array."""
    found: Array = np.empty((arrays, slices), np.int64)
    found.fill(-1)  # A third of what `np.full` takes, and most pulls are small.
    return found


def _slices(came: ValueRun) -> str:
    return f"slices {came.first} to {came.stop - 1} of bucket {came.bucket}"


class PushPull(KeyPull):
    """Gradients of a step, and the values that have seen it: one call, which ends with the values. They say that the
    gradients have arrived; `future.arrived` is set where the shards have said so before."""

    def __init__(
        self, future: StoreFuture[Any], push: PushOperation, asked: AskedKeys, out: Sequence[Array] | None = None
    ) -> None:
        super().__init__(future, asked, out)
        self.future: StoreFuture[Any] = future
        self.push = push
        self._missing = 0

    def look(self, memory: GivenArrays) -> None:
        self.push.look(memory)
        super().look(memory)

    def use(self, encoders: GradientEncoders) -> None:
        self.push.use(encoders)

    def prepare(self, routing: Routing) -> dict[int, int]:
        push = self.push
        push.owner, push.number, push.priority = self, self.number, self.priority
        pending = super().prepare(routing)
        self._missing = sum(push.prepare(routing).values())
        return pending

    def begin(self, link: Link) -> None:
        link.put(self.push.runs[link.shard])
        super().begin(link)

    def give_up(self, link: Link) -> None:
        link.withdraw(self.push.runs[link.shard])
        super().give_up(link)

    def delivered(self, shard: int, count: int) -> bool:
        self._missing -= count
        if self._missing <= 0:
            self.future.arrived = True
        return False

    def resent(self, shard: int, run: SentRun) -> None:
        if not self.ended:
            self.push.runs[shard].append(run)

    def let_go(self) -> None:
        for run in [run for runs in self.push.runs.values() for run in runs]:
            run.cancelled = True  # A connection that breaks now need not bring it again.
        self.push.owner = None
        self.push.let_go()

    def __str__(self) -> str:
        return f"pushpull of {self.asked.keys}, step {self.push.sent.step}"


# --- What a slot owes of its gradients, for a snapshot and back -------------------------------------------------------
# It passes no socket. Pure.


class ResidualOperation(Operation):
    """Ends at once, with copies of what is owed by name; with `named`, takes that on before."""

    def __init__(self, future: Future[Any], named: Mapping[str, Array] | None) -> None:
        super().__init__(future)
        self._named = named
        self._owed: dict[str, Array] = {}

    def use(self, encoders: GradientEncoders) -> None:
        self._encoders = encoders

    def prepare(self, routing: Routing) -> dict[int, int]:
        if self._named is not None:
            self._encoders.restore(self._named)
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
