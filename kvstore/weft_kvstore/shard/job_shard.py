"""A job's part on one shard: what it does with each thing that comes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

import numpy as np

from weft_kernels.id_draws import uniform_of_ids
from weft_kernels.rules.record import Rule
from weft_kvstore.arrays import Range, Ranges, Segment
from weft_kvstore.bucket.bucket import PlainBucket, PullWait, plain_bucket
from weft_kvstore.bucket.gate import StepGate
from weft_kvstore.description.records import StoreDescription, first_table_rows, is_given
from weft_kvstore.errors import StoreError
from weft_kvstore.rows.memory import TablePlace
from weft_kvstore.rows.rows import Rows, is_ascending
from weft_kvstore.rows.storage import CHANCE
from weft_kvstore.same_host.layout import Lent, OwnPlaces, ShardPlaces, shard_places
from weft_kvstore.shard.specs import LiveHyper, Specs
from weft_kvstore.sharding import BucketKind, KeySlices, routing_of
from weft_kvstore.tables.state import TableState
from weft_kvstore.tables.steps import TableSpec
from weft_kvstore.wire.codec import ProtocolError, Run, check_chunks, chunks_apart, unpacked_ids, unpacked_rows
from weft_kvstore.wire.messages import PayloadKind

# --- What follows on a shard from something that came -----------------------------------------------------------------


class Taken(NamedTuple):
    """What follows from something that came: `tables` may now merge, and so may `arrivals` of buckets. Where values
    were set, tables have `changed` or ranges of buckets have, and pulls may have waited for it; where the last ids of a
    `pull` came, tables can answer it instead."""

    tables: Sequence[TableState] = ()
    arrivals: Sequence[tuple[PlainBucket, Range]] = ()
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
    `lend`: makes memory of so many bytes that clients of this host may read, where the values of dense keys lie then;
    None where there can be none.

    Raises DescriptionError for a rule that there is not, ValueError for an initializer that there is not, and
    OpenStoppedError soon after `stopped` says so.
    """

    def __init__(
        self,
        description: StoreDescription,
        shard: int,
        *,
        rule: Rule | None = None,
        tables: TablePlace | None = None,
        keeps_previous: bool = False,
        lend: Callable[[int], Lent | None] = lambda _: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.description = description
        self.shard = shard
        self.gate = StepGate(description.commit, description.slots) if description.commit is not None else None
        """What holds each step until the slots have agreed on it, where they do."""
        self._routing = routing_of(description)
        self.buckets: dict[int, PlainBucket] = {}
        self.tables: dict[int, TableState] = {}
        self.live = LiveHyper(description, self._routing, shard, self.buckets, self.tables)
        """The hyper-parameters, which may be changed."""

        def wanted(key: str) -> None:
            if stopped():
                raise OpenStoppedError(f"key {key!r}: the job is not wanted any more")

        specs = Specs(
            description,
            self._routing,
            shard,
            live=self.live,
            gate=self.gate,
            rule=rule,
            keeps_previous=keeps_previous,
        )
        own = OwnPlaces(self._routing, shard)
        self.lent = lend(own.nbytes) if own.nbytes else None
        """Where its values are, if clients of this host may read them."""
        for bucket in self._routing.buckets:
            if bucket.kind is BucketKind.TABLE:
                if self._routing.tables[bucket.keys[0]].bytes_on(shard):
                    self.tables[bucket.number] = self._made_table(specs.of_table(bucket.number), bucket.keys[0], tables)
            elif shard in bucket.parts:
                spec = specs.of_bucket(bucket.number)
                at = memory = None
                if self.lent is not None:
                    at = own.starts[bucket.number]
                    memory = self.lent.bytes_at(at, int(spec.part.bounds[-1]))
                self.buckets[bucket.number] = plain_bucket(
                    description, self._routing, spec, shard, wanted, memory=memory, at=at
                )
        if self.gate is not None:
            slices = sum(len(one.state) for one in self.buckets.values() if one.state.spec.slots)
            self.gate.expect(slices + sum(1 for one in self.tables.values() if one.spec.slots))

    def close(self) -> None:
        """Gives back what tables have on disk. Nothing else is to be called then."""
        for table in self.tables.values():
            table.close()
        if self.lent is not None:
            self.lent.close()

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
        return sum(one.state.nbytes for one in self.buckets.values())

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables' values, were every row touched."""
        return sum(one.capacity_bytes for one in self.tables.values())

    @property
    def waiting_sets(self) -> int:
        """Parts that were set for versions that are still to come; may be asked on any thread."""
        in_buckets = sum(one.state.sets.waiting for one in list(self.buckets.values()))
        return in_buckets + sum(one.sets_waiting for one in list(self.tables.values()))

    def plain(self, number: int) -> PlainBucket:
        """A bucket of dense keys. Raises ProtocolError, as the others do, where it is none that is here."""
        found = self.buckets.get(number)
        if found is None:
            raise ProtocolError(f"bucket: {number} has no slice on shard {self.shard}")
        return found

    def table(self, number: int) -> TableState:
        found = self.tables.get(number)
        if found is None:
            raise ProtocolError(f"bucket: {number} has no rows on shard {self.shard}")
        return found

    def _made_table(self, spec: TableSpec, place: int, rows_at: TablePlace | None) -> TableState:
        """Raises ValueError for an initializer that there is not, StoreError where its rows have no place."""
        key, cut, seed = self.description.keys[place], self._routing.tables[place], self.description.seed
        make = partial(first_table_rows, key, seed, cut.width)
        if not is_given(key):
            make(np.zeros(0, np.int64))  # An initializer that there is not is found out now.
        draw = partial(uniform_of_ids, seed, CHANCE, key.key)
        try:
            return TableState(spec, cut, self.shard, make, sparse=key.sparse, draw=draw, place=rows_at)
        except OSError as error:
            raise StoreError(f"key {key.key!r}: there is no place for its rows: {error}") from error

    # --- Values that clients set, in order with what is pushed. `origin` tells the parts of one set from those of
    # another, so that each is taken in once. All raise ProtocolError for what this shard does not have, and
    # PushRefusedError where it contradicts what is there; what is refused changes nothing.

    def set_slices(self, slot: int, run: Run, origin: Hashable) -> Taken:
        """Sets a run of slices."""
        bucket = self.plain(run.bucket)
        segment = bucket.segment_of(run)
        bucket.state.sets.check(slot, run.step, segment.first, segment.stop, origin)
        changed = bucket.state.sets.accept(run.step, segment, origin)
        return Taken(changed=True, ranges=[(bucket, one) for one in changed])

    def restore(self, slot: int, run: Run, origin: Hashable) -> Taken:
        """Restores a run of slices: their value, or a state array of the rule."""
        bucket = self.plain(run.bucket)
        segment = bucket.segment_of(run)
        changed = bucket.state.restore(slot, run.step, run.chunks, segment, origin)
        return Taken(changed=True, ranges=[(bucket, one) for one in changed])

    def set_chunks(self, slot: int, run: Run, origin: Hashable) -> Taken:
        """Sets rows of a table, each chunk by itself."""
        table = self.table(run.bucket)
        chunks = list(enumerate(chunks_apart(rows_of(table, run), table.cut.rows_up), run.first))
        for index, _ in chunks:  # all before any
            table.check_set(slot, run.step, (origin, index))
        changed = [table.set(run.step, part, (origin, index)) for index, part in chunks]
        return Taken([table] if any(changed) else [], changed=True)

    # --- Pulls, with the ids of rows that they want. All raise ProtocolError for what this shard does not have.

    def ask(self, wait: PullWait, bucket: int, first: int, count: int, chunks: int) -> None:
        """Takes in an entry of a pull: slices of plain buckets are open in it then.

        A pull of a table waits for `chunks` chunks of ids first; no other pull has any.
        """
        table = self.tables.get(bucket)
        if table is not None:
            check_chunks(table.cut.rows_on[self.shard], table.cut.ids_up, chunks, table.spec.key)
            if wait.open or wait.open_tables:
                raise ProtocolError(f"Pull.bucket: {bucket} is a table, and is asked for together with others")
            wait.expect(bucket, chunks)
            return
        if chunks:
            raise ProtocolError(f"Pull.chunks: {chunks} of bucket {bucket}, which is no table")
        if wait.chunks:
            raise ProtocolError(f"Pull.bucket: {bucket} is asked for beside a table")
        self.plain(bucket).check_range(first, count, "Pull.first")
        wait.want(bucket, first, first + count)

    def ask_ids(self, wait: PullWait, run: Run) -> Taken:
        """Takes in a run of the ids of a pull."""
        table = self.tables.get(run.bucket)
        if table is None or run.bucket not in wait.open_tables or run.chunks != wait.chunks:
            raise ProtocolError(
                f"Push.request: {wait.request} does not ask for {run.chunks} chunks of bucket {run.bucket}"
            )
        ids = unpacked_ids(run, table.cut, self.shard, table.spec.key)
        if not wait.add_ids(run.first, ids):
            return Taken(pull=wait)
        places = ids[0] if wait.chunks == 1 else wait.places
        if wait.chunks > 1 and not is_ascending(places):  # Those of one chunk do.
            raise ProtocolError(f"ids: rows of key {table.spec.key!r} that do not ascend")
        wait.ids = places
        return Taken([table], pull=wait)

    # --- Steps

    def accept_chunks(self, slot: int, run: Run) -> Taken:
        """Takes in a run of chunks of a push of rows. Raises ProtocolError for a run that this shard does not have, and
        PushRefusedError where the push contradicts what is there."""
        table = self.tables.get(run.bucket) or self.table(run.bucket)
        rows = rows_of(table, run)
        return Taken([table]) if table.push(slot, run.step, rows, run.first, run.count, run.chunks) else Taken()

    def declare_nothing(self, slot: int, step: int, keys: Iterable[int]) -> Taken:
        """The slot has nothing for these keys in this step. Raises as `accept_chunks` does."""
        tables, ranges = self._contributed(keys)
        for table in tables:  # all before any: what is refused changes nothing
            table.check(slot, step, pushes=False)
        runs = [(self.buckets[number], first, stop) for number, some in ranges.items() for first, stop in some]
        for bucket, first, stop in runs:
            bucket.state.check(slot, step, first, stop, pushes=False)
        ready = [table for table in tables if table.accept(slot, step, None)]
        nothing = [
            (bucket, bucket.state.accept(slot, step, Segment(first, stop, None))) for bucket, first, stop in runs
        ]
        return Taken(ready, [(bucket, one) for bucket, arrivals in nothing for one in arrivals])

    def _contributed(self, keys: Iterable[int]) -> tuple[list[TableState], dict[int, Ranges]]:
        """What this shard has of these keys: tables, and slices by bucket. Raises ProtocolError."""
        tables: list[TableState] = []
        ranges: dict[int, Ranges] = {}
        for key in keys:
            if not key < len(self.description.keys):
                raise ProtocolError(f"Barrier.nothing: key {key}, there are {len(self.description.keys)}")
            number = self._routing.bucket_of[key]
            if number in self.tables:
                tables.append(self.tables[number])
            elif self.shard in self._routing.runs[key]:
                first = self._routing.first_in_bucket[key][self.shard]
                ranges.setdefault(number, Ranges()).add(first, first + len(self._routing.runs[key][self.shard]))
        return tables, ranges

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
        for table in self.tables.values():
            table.replace(slot)

    def waits_for(self, wait: PullWait) -> Reason:
        """What an open pull waits for; no slot is missing where all was answered."""
        for number in wait.open:
            text, missing = self.buckets[number].pulls.waits_for(wait)
            if missing:
                return text, missing
        for number in sorted(wait.open_tables):
            table = self.tables[number]
            if wait.ids is None:
                return f"the ids of key {table.spec.key!r} have not all come", []
            if not table.can_answer(wait):
                return table.waits_for(wait)
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
        for number in wait.open_tables:
            table = self.tables[number]
            if (every or _both(table.spec.slots, absent)) and wait.ids is not None:
                text, missing = table.waits_for(wait)
                if lost := _both(missing, absent):
                    return text, lost
        return None

    def step_waits_for(self, step: int) -> Reason:
        """What a step that is not measured waits for. Raises ProtocolError where steps are not committed."""
        text, missing = self._gate("Measure").missing(step)
        if missing:
            return text, missing
        for table in self.tables.values():
            if table.spec.slots and table.version <= step:
                behind = table.steps.missing(step + 1, 0, settled=True)
                if behind[1]:
                    return f"key {table.spec.key!r} {behind[0]}", behind[1]
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
