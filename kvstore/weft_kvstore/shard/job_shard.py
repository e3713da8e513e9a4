"""A job's part on one shard: what it does with each thing that comes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from weft_kernels.rules.record import Rule
from weft_kvstore.arrays import Array, Range, Ranges, Segment
from weft_kvstore.bucket.bucket import PlainBucket, PullWait
from weft_kvstore.bucket.gate import StepGate
from weft_kvstore.bucket.state import Arrival
from weft_kvstore.bucket.update import Computing, InTurn
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreError
from weft_kvstore.rows.memory import TablePlace
from weft_kvstore.rows.rows import Rows, is_ascending
from weft_kvstore.same_host.layout import ShardPlaces, shard_places
from weft_kvstore.shard.parts import LiveHyper, ShardParts, Specs
from weft_kvstore.sharding import KeySlices, routing_of
from weft_kvstore.tables.state import TableState
from weft_kvstore.tables.steps import ChunkRun
from weft_kvstore.wire.codec import ProtocolError, Run, check_chunks, chunks_apart, unpacked_ids, unpacked_rows
from weft_kvstore.wire.messages import PayloadKind

# --- What follows on a shard from something that came -----------------------------------------------------------------


class Taken(NamedTuple):
    """What follows from something that came: `units` may now merge, and so may `arrivals` of buckets. Where values were
    set, units have `changed` or ranges of buckets have, and pulls may have waited for it; where the last ids of a
    `pull` came, units can answer it instead."""

    units: Sequence[TableState] = ()
    arrivals: Sequence[tuple[PlainBucket, Arrival]] = ()
    changed: bool = False
    ranges: Sequence[tuple[PlainBucket, Range]] = ()
    pull: PullWait | None = None


# --- The rows of a run of a table -------------------------------------------------------------------------------------


def rows_of(table: TableState, run: Run) -> Rows:
    """A run of rows, to be written. They are copied where the payload is no place for them. Raises ProtocolError."""
    rows = unpacked_rows(run, table.cut, table.shard, table.spec.key)
    ids, values = rows.parts[0]
    flags = values.flags
    if flags.writeable and flags.aligned and ids.flags.aligned:
        return rows
    return Rows(ids.copy(), values.copy())


# --- Values that clients set on a shard, in order with what is pushed: slices, and rows of tables ---------------------


class JobSets:
    """Those of one job. `origin` tells the parts of one set from those of another, so that each is taken in once. All
    raise ProtocolError for what this shard does not have, PushRefusedError where it contradicts what is there; what is
    refused changes nothing."""

    def __init__(self, parts: ShardParts) -> None:
        self._parts = parts

    @property
    def waiting(self) -> int:
        """Parts that were set for versions that are still to come; may be asked on any thread."""
        in_buckets = sum(one.state.sets.waiting for one in list(self._parts.buckets.values()))
        return in_buckets + sum(one.sets.waiting for one in list(self._parts.units.values()))

    def slices(self, slot: int, run: Run, origin: Hashable) -> Taken:
        """Sets a run of slices."""
        bucket = self._parts.plain(run.bucket)
        segment = bucket.segment_of(run)
        bucket.state.sets.check(slot, run.step, segment.first, segment.stop, origin)
        changed = bucket.state.sets.accept(run.step, segment, origin)
        return Taken(changed=True, ranges=[(bucket, one) for one in changed])

    def restored(self, slot: int, run: Run, origin: Hashable) -> Taken:
        """Restores a run of slices: their value, or a state array of the rule."""
        bucket = self._parts.plain(run.bucket)
        segment = bucket.segment_of(run)
        changed = bucket.state.restore(slot, run.step, run.chunks, segment, origin)
        return Taken(changed=True, ranges=[(bucket, one) for one in changed])

    def chunks(self, slot: int, run: Run, origin: Hashable) -> Taken:
        """Sets rows of a table, each chunk by itself."""
        table = self._parts.table(run.bucket)
        chunks = list(enumerate(chunks_apart(rows_of(table, run), table.cut.rows_up), run.first))
        for index, _ in chunks:  # all before any
            table.sets.check(slot, run.step, (origin, index))
        changed = [table.accept_set(run.step, part, (origin, index)) for index, part in chunks]
        return Taken([table] if any(changed) else [], changed=True)

    def rows(self, slot: int, bucket: int, version: int, rows: Rows, origin: Hashable) -> Taken:
        """Sets rows by their places, where there is one shard."""
        table = self._parts.table(bucket)
        table.sets.check(slot, version, origin)
        return Taken([table] if table.accept_set(version, rows, origin) else [], changed=True)


# --- What clients ask of a job on a shard, entry by entry, with the ids of rows that they want ------------------------


class JobPulls:
    """Takes in what is asked of one job. All raise ProtocolError for what this shard does not have."""

    def __init__(self, parts: ShardParts, shard: int) -> None:
        self._parts = parts
        self._shard = shard

    def ask(self, wait: PullWait, bucket: int, first: int, count: int, chunks: int) -> None:
        """Takes in an entry of a pull: slices of plain buckets are open in it then.

        A pull of a table waits for `chunks` chunks of ids first; no other pull has any.
        """
        unit = self._parts.units.get(bucket)
        if unit is not None:
            check_chunks(unit.cut.rows_on[self._shard], unit.cut.ids_up, chunks, unit.spec.key)
            if wait.open or wait.open_units:
                raise ProtocolError(f"Pull.bucket: {bucket} is a table, and is asked for together with others")
            wait.expect(bucket, chunks)
            return
        if chunks:
            raise ProtocolError(f"Pull.chunks: {chunks} of bucket {bucket}, which is no table")
        if wait.chunks:
            raise ProtocolError(f"Pull.bucket: {bucket} is asked for beside a table")
        (self._parts.buckets.get(bucket) or self._parts.plain(bucket)).check_range(first, count, "Pull.first")
        wait.want(bucket, first, first + count)

    def ids(self, wait: PullWait, run: Run) -> Taken:
        """Takes in a run of the ids of a pull."""
        table = self._parts.units.get(run.bucket)
        if not isinstance(table, TableState) or run.bucket not in wait.open_units or run.chunks != wait.chunks:
            raise ProtocolError(
                f"Push.request: {wait.request} does not ask for {run.chunks} chunks of bucket {run.bucket}"
            )
        ids = unpacked_ids(run, table.cut, self._shard, table.spec.key)
        if not wait.add_ids(run.first, ids):
            return Taken(pull=wait)
        places = ids[0] if wait.chunks == 1 else wait.places
        if wait.chunks > 1 and not is_ascending(places):  # Those of one chunk do.
            raise ProtocolError(f"ids: rows of key {table.spec.key!r} that do not ascend")
        wait.ids = places
        return Taken([table], pull=wait)

    def rows(self, wait: PullWait, bucket: int, places: Array) -> list[TableState]:
        """Takes in a pull of rows by their places. Returns as `ask` does."""
        wait.ids = places
        return [self._parts.table(bucket)]


# --- Who waits for whom on a shard, in words: what a pull lacks, and a step that is not measured ----------------------


Reason: TypeAlias = tuple[str, list[int]]
"""What is waited for, in words, and the slots that are missing."""


def _both(some: Iterable[int], others: Collection[int]) -> list[int]:
    return [one for one in some if one in others]


# --- A job's part on one shard: what it does with each thing that comes -----------------------------------------------
# Used by the shard behind its sockets and by the local store without any.


class OpenStoppedError(StoreError):
    """The job was not wanted any more before it was open."""


class JobShard:
    """Shard number `shard` of a store. Makes the first values of its slices; their memory is all it holds.
    `keeps_previous`: of dense keys also the values before the last step of each slice, which a pull of that version
    gets. So a process that takes over a slot can do the step again that was under way, and nobody else has to.

    Raises DescriptionError for a rule that there is not, ValueError for an initializer that there is not, and
    OpenStoppedError soon after `stopped` says so.
    """

    def __init__(
        self,
        description: StoreDescription,
        shard: int,
        *,
        rule: Rule | None = None,
        computing: Computing | None = None,
        tables: TablePlace | None = None,
        keeps_previous: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.description = description
        self.shard = shard
        self.gate = StepGate(description.commit, description.slots) if description.commit is not None else None
        """What holds each step until the slots have agreed on it, where they do."""
        self._routing = routing_of(description)
        self.parts = ShardParts(description, self._routing, shard)
        self.buckets: Mapping[int, PlainBucket] = self.parts.buckets
        self.live = LiveHyper(description, self._routing, shard, self.parts.buckets, self.parts.units)
        """The hyper-parameters, which may be changed."""
        self.sets = JobSets(self.parts)
        """What takes in values that are set."""
        self.pulls = JobPulls(self.parts, shard)
        """What takes in what is asked for."""

        def wanted(key: str) -> None:
            if stopped():
                raise OpenStoppedError(f"key {key!r}: the job is not wanted any more")

        specs = Specs(
            description,
            self._routing,
            shard,
            live=self.live,
            gate=self.gate,
            computing=computing or InTurn(),
            rule=rule,
            keeps_previous=keeps_previous,
        )
        self.parts.make(specs, tables, wanted)
        if self.gate is not None:
            self.gate.expect(self.parts.contributed)

    def close(self) -> None:
        """Gives back what tables have on disk. Nothing else is to be called then."""
        self.parts.close()

    @cached_property
    def places(self) -> ShardPlaces:
        """Where this shard's slices are in the arenas of clients on its host."""
        return shard_places(self._routing, self.shard)

    def reads_in_place(self, run: Run) -> bool:
        """Whether it does nothing with the bytes of a run but compute: what is checked, or kept, has to be copied."""
        bucket = self.buckets.get(run.bucket)
        return run.payload_kind == PayloadKind.GRADIENT and bucket is not None and bucket.pushed is None

    @property
    def cuts(self) -> Sequence[KeySlices]:
        """How keys are cut into slices, by their places."""
        return self._routing.cuts

    @property
    def nbytes(self) -> int:
        """Bytes of the values that this shard has, tables left out."""
        return self.parts.nbytes

    @property
    def units(self) -> Iterable[TableState]:
        """What merges as one here."""
        return self.parts.units.values()

    def accept_chunks(self, slot: int, run: Run) -> Taken:
        """Takes in a run of chunks of a push of rows. Raises ProtocolError for a run that this shard does not have, and
        PushRefusedError where the push contradicts what is there."""
        table = self.parts.units.get(run.bucket) or self.parts.table(run.bucket)
        came = ChunkRun(run.first, run.first + run.count, rows_of(table, run))
        return Taken([table]) if table.accept_run(slot, run.step, came, run.chunks) else Taken()

    def accept_rows(self, slot: int, bucket: int, step: int, rows: Rows) -> Taken:
        """Takes over all rows of a push, where there is one shard. Raises as `accept_chunks` does."""
        table = self.parts.table(bucket)
        table.check(slot, step, pushes=True)
        return Taken([table]) if table.accept(slot, step, rows) else Taken()

    def declare_nothing(self, slot: int, step: int, keys: Iterable[int]) -> Taken:
        """The slot has nothing for these keys in this step. Raises as `accept_chunks` does."""
        units, ranges = self._contributed(keys)
        for unit in units:  # all before any: what is refused changes nothing
            unit.check(slot, step, pushes=False)
        runs = [(self.buckets[number], first, stop) for number, some in ranges.items() for first, stop in some]
        for bucket, first, stop in runs:
            bucket.state.check(slot, step, first, stop, pushes=False)
        ready = [unit for unit in units if unit.accept(slot, step, None)]
        nothing = [
            (bucket, bucket.state.accept(slot, step, Segment(first, stop, None))) for bucket, first, stop in runs
        ]
        return Taken(ready, [(bucket, one) for bucket, arrivals in nothing for one in arrivals])

    def _contributed(self, keys: Iterable[int]) -> tuple[list[TableState], dict[int, Ranges]]:
        """What this shard has of these keys: units, and slices by bucket. Raises ProtocolError."""
        units: list[TableState] = []
        ranges: dict[int, Ranges] = {}
        for key in keys:
            if not key < len(self.description.keys):
                raise ProtocolError(f"Barrier.nothing: key {key}, there are {len(self.description.keys)}")
            number = self._routing.bucket_of[key]
            if number in self.parts.units:
                units.append(self.parts.units[number])
            elif self.shard in self._routing.runs[key]:
                first = self._routing.first_in_bucket[key][self.shard]
                ranges.setdefault(number, Ranges()).add(first, first + len(self._routing.runs[key][self.shard]))
        return units, ranges

    def arrive(self, slot: int, step: int) -> None:
        """The slot's barrier of a step is whole. Raises ProtocolError where steps are not committed, PushRefusedError
        for a step that nobody can be at."""
        self._gate("Measure").arrive(slot, step)

    def commit(self, step: int, *, norm: float, finite: bool) -> bool:
        """A slot says what all shards measured of a step. True if everything that is contributed to may go on; raises
        as `arrive`."""
        return self._gate("Commit").commit(step, norm=norm, finite=finite)

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: its unmerged pushes are forgotten."""
        if self.gate is not None:
            self.gate.replace(slot)
        for bucket in self.buckets.values():
            bucket.state.replace(slot)
        for unit in self.units:
            unit.replace(slot)

    def waits_for(self, wait: PullWait) -> Reason:
        """What an open pull waits for; no slot is missing where all was answered."""
        for number in wait.open:
            text, missing = self.buckets[number].pulls.waits_for(wait)
            if missing:
                return text, missing
        for number in sorted(wait.open_units):
            unit = self.parts.units[number]
            if wait.ids is None:
                return f"the ids of key {unit.spec.key!r} have not all come", []
            if not unit.can_answer(wait):
                return unit.waits_for(wait)
        for number in wait.open:
            return self.buckets[number].pulls.waits_for(wait)
        return "every slice was answered", []

    def lacks(self, wait: PullWait, absent: Collection[int]) -> Reason | None:
        """What an open pull waits for of slots that are `absent`, and which; None where nothing. There may be many
        pulls: only those parts are looked at to which such a slot contributes, and all where a gate lets any slot hold
        them."""
        every = self.gate is not None
        for number in wait.open:
            bucket = self.buckets[number]
            if every or _both(bucket.state.spec.slots, absent):
                text, missing = bucket.pulls.waits_for(wait)
                if lost := _both(missing, absent):
                    return text, lost
        for number in wait.open_units:
            unit = self.parts.units[number]
            if (every or _both(unit.spec.slots, absent)) and wait.ids is not None:
                text, missing = unit.waits_for(wait)
                if lost := _both(missing, absent):
                    return text, lost
        return None

    def step_waits_for(self, step: int) -> Reason:
        """What a step that is not measured waits for. Raises ProtocolError where steps are not committed."""
        text, missing = self._gate("Measure").missing(step)
        if missing:
            return text, missing
        for unit in self.units:
            if unit.spec.slots and unit.version <= step:
                behind = unit.steps.missing(step + 1, 0, settled=True)
                if behind[1]:
                    return f"key {unit.spec.key!r} {behind[0]}", behind[1]
        for bucket in self.buckets.values():
            steps = bucket.state.steps
            late = steps.came.min(axis=0) <= step if steps.slots else np.zeros(0, np.bool_)
            if late.any():  # The first slice that has not merged it.
                at = int(late.argmax())
                text, missing = steps.missing(at, step + 1, None)
                return f"{bucket.state.spec.key_named(at)} {text}", missing
        return text, missing

    def _gate(self, message: str) -> StepGate:
        if self.gate is None:
            raise ProtocolError(f"{message}.step: the job's steps are not committed")
        return self.gate
