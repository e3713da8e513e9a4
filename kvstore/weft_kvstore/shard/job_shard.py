"""A job on one shard: what it does with each message that comes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cache, partial
from typing import Any, Final

import numpy as np

from weft_graph.program import Update
from weft_kernels.blocks import VECTOR_BLOCK
from weft_kernels.id_draws import uniform_of_ids
from weft_kernels.rules.record import Rule
from weft_kvstore.arrays import Ranges
from weft_kvstore.bucket.bucket import Bucket, make_bucket
from weft_kvstore.bucket.gate import StepGate
from weft_kvstore.bucket.steps import PullWait
from weft_kvstore.bucket.update import BUCKET_PIECES, PIECE_CALLS, PIECE_ELEMENTS, PIECE_NODES, BucketSpec
from weft_kvstore.description.check import rule_of
from weft_kvstore.description.records import KeyDescription, Mode, StoreDescription, first_table_rows, is_given
from weft_kvstore.errors import PushRefusedError, StoreError
from weft_kvstore.hyper import HyperTimeline
from weft_kvstore.rows.growing_array import TablePlace
from weft_kvstore.rows.storage import CHANCE
from weft_kvstore.same_host.memory import ALIGNMENT, SharedMemory
from weft_kvstore.sharding import routing_of
from weft_kvstore.tables import RequestedRows, TableSpec, TableState
from weft_kvstore.wire.codec import ProtocolError, PushSegment
from weft_kvstore.wire.messages import Hyper, PayloadKind

MAX_CHANGES: Final = 1 << 16
"""Changes of hyper-parameters that are kept for each slot: for steps to come, and for keys that are behind others.
Beyond that the earliest are forgotten, of steps that some key has applied; a key may be pushed no more."""

FORGET_EVERY: Final = 16
"""After so many changes it is looked at which ones no step asks for any more: that takes a look at every bucket."""


# --- A job on one shard: what it does with each message that comes ----------------------------------------------------
# Used by the shard behind its sockets and by the local store without any.


class JobShard:
    """Shard number `shard` of a store. Makes the first values of its slices; their memory is all it holds.
    `keeps_previous`: of dense keys also the values before the last step of each slice, which a pull of that version
    gets. So a process that takes over a slot can do the step again that was under way, and nobody else has to.
    `make_shared`: makes memory of so many bytes that clients of this host may read, where the values of dense keys lie
    then; None where there can be none.

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
        make_shared: Callable[[int], SharedMemory | None] = lambda _: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.description = description
        self.shard = shard
        self.gate = StepGate(description.commit, description.slots) if description.commit is not None else None
        """What holds each step until the slots have agreed on it, where they do."""
        self._routing = routing_of(description)
        self.buckets: dict[int, Bucket] = {}
        self.tables: dict[int, TableState] = {}
        self.hyper = HyperTimeline(description)
        """What slots have changed of the hyper-parameters."""
        self.end_capture: Callable[[], None] = lambda: None
        """Ends the capture that is not complete, if there is one."""

        self._rule = rule or rule_of(description)
        self._keeps_previous = keeps_previous
        sizes = {
            bucket.number: -(-int(bucket.partitions[shard].bounds[-1]) // ALIGNMENT) * ALIGNMENT
            for bucket in self._routing.buckets
            if shard in bucket.partitions
        }
        self.shared_memory = make_shared(sum(sizes.values()))
        """Where the values of dense keys are, and what clients of this host read besides; None where they read
        nothing."""
        begin = 0
        for bucket in self._routing.buckets:
            if table := self._routing.tables.get(bucket.keys[0]):
                if table.bytes_on(shard):
                    self.tables[bucket.number] = self._made_table(bucket.number, tables)
            elif shard in bucket.partitions:
                spec, memory = self._spec_of(bucket.number), None
                assert isinstance(spec, BucketSpec)
                if self.shared_memory is not None:
                    memory = self.shared_memory.array(begin, (int(spec.partition.bounds[-1]),), np.uint8)
                    begin += sizes[bucket.number]
                self.buckets[bucket.number] = make_bucket(description, spec, stopped, memory=memory)
        self.all_buckets: dict[int, Bucket | TableState] = {**self.tables, **self.buckets}
        """Both, by number: a table is a bucket of one slice."""
        if self.gate is not None:
            self.gate.expect(sum(one.count for one in self.all_buckets.values() if one.spec.slots))

    def close(self) -> None:
        """Gives back what tables have on disk, and gradients that wait in clients' memory. Nothing else is to be called
        then."""
        for bucket in self.all_buckets.values():
            for slot in bucket.spec.slots:
                bucket.replace(slot)
        for table in self.tables.values():
            table.to_answer.clear()  # They know their clients, and those the job.
            table.rows.close()
        if self.shared_memory is not None:
            self.shared_memory.close()

    def reads_in_place(self, pushed: PushSegment) -> bool:
        """Whether it does nothing with the bytes of a segment but compute: what is checked, or kept, has to be
        copied."""
        bucket = self.buckets.get(pushed.bucket)
        return pushed.payload_kind == PayloadKind.GRADIENT and bucket is not None and bucket.spec.pushed is None

    @property
    def waiting_sets(self) -> int:
        """Slices, and versions of tables, that were set for versions that are still to come; may be asked on any
        thread."""
        return sum(one.sets_waiting for one in list(self.all_buckets.values()))

    def _spec_of(self, number: int) -> BucketSpec | TableSpec:
        """How a bucket is updated: all of its keys as the first of them is."""
        description, bucket, key = self.description, self._routing.buckets[number], self._key_of(number)
        rule = self._rule if key.rule is None and key.hyper is None else rule_of(description, key)
        document = description.rule if key.rule is None else key.rule
        graph = {} if isinstance(document, str) else document.get("graph", {})
        nodes = max(len(graph.get("nodes", ())), PIECE_NODES)
        # Whole blocks, so that cutting changes no bit.
        piece_elements = PIECE_ELEMENTS * PIECE_NODES // nodes // VECTOR_BLOCK * VECTOR_BLOCK
        staleness = description.staleness if key.staleness is None else key.staleness
        of_both: dict[str, Any] = {
            "number": number,
            "slots": key.slots,
            "update": key.update,
            "merge": description.merge,
            "is_sync": description.mode is Mode.SYNC,
            "staleness": staleness if description.mode is Mode.STALE else None,
            "rule": rule,
            "hyper": self.hyper.of(key, rule, alone=key.rows),
            "gate": self.gate,
        }
        if key.rows:
            given = is_given(key)
            return TableSpec(**of_both, key=key.key, priority=key.priority, given=given, piece_elements=piece_elements)
        partition = bucket.partitions[self.shard]
        by_slice = key.update is Update.RULE and not key.whole and not rule.anywhere
        return BucketSpec(
            **of_both,
            partition=partition,
            keys=description.keys,
            piece_elements=BUCKET_PIECES * piece_elements,
            piece_slices=PIECE_CALLS * PIECE_NODES // nodes if by_slice else len(partition),
            pushed=bucket.pushed,
            pulled=bucket.pulled,
            is_whole=key.whole,
            keeps_previous=self._keeps_previous,
        )

    def _made_table(self, number: int, rows_at: TablePlace | None) -> TableState:
        """Raises ValueError for an initializer that there is not, StoreError where its rows have no place."""
        spec, key, seed = self._spec_of(number), self._key_of(number), self.description.seed
        assert isinstance(spec, TableSpec)
        layout = self._routing.tables[self._routing.buckets[number].keys[0]]
        make = partial(first_table_rows, key, seed, layout.width)
        if not is_given(key):
            make(np.zeros(0, np.int64))  # An initializer that there is not is found out now.
        draw = partial(uniform_of_ids, seed, CHANCE, key.key)
        try:
            return TableState(spec, layout, self.shard, make, sparse=key.sparse, draw=draw, place=rows_at)
        except OSError as error:
            raise StoreError(f"key {key.key!r}: there is no place for its rows: {error}") from error

    def ask(self, wait: PullWait, number: int, first: int, count: int, chunks: int) -> None:
        """Takes in a pull of a table, which waits for `chunks` chunks of ids first, or with 0 for the gradients of the
        same request. Raises ProtocolError for slices that are not here, and for what else nobody can ask for."""
        bucket, table = self.buckets.get(number), self.tables.get(number)
        if bucket is not None and not chunks:
            raise bucket.out_of_range(first, count, "Pull.first")
        if table is None:
            raise ProtocolError(f"Pull.bucket: {number} has no rows on shard {self.shard}")
        if chunks:
            table.reader.check_chunks(chunks, table.layout.ids_up)
        if wait.entries > 1:
            raise ProtocolError(f"Pull.bucket: {number} is a table, and is asked for together with others")
        wait.rows = RequestedRows(table, chunks)

    def contributed(self, keys: Iterable[int]) -> dict[int, Ranges]:
        """What this shard has of these keys: slices by bucket, or table. Raises ProtocolError."""
        ranges: dict[int, Ranges] = {}
        for key in keys:
            if not key < len(self.description.keys):
                raise ProtocolError(f"Barrier.nothing: key {key}, there are {len(self.description.keys)}")
            number = self._routing.bucket_of[key]
            if number in self.tables:
                ranges[number] = Ranges((0, 1))
            elif (key_range := self._routing.ranges[key].get(self.shard)) is not None:
                ranges.setdefault(number, Ranges()).add(key_range.first, key_range.stop)
        return ranges

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: its unmerged pushes are forgotten, and values that were set behind them
        hold."""
        if self.gate is not None:
            self.gate.replace(slot)
        for bucket in self.all_buckets.values():
            bucket.replace(slot)
            bucket.put_sets_of(slot)
        self.hyper.withdraw(slot, cache(partial(self._next_step, slot)))

    def change_hyper(self, slot: int, message: Hyper) -> None:
        """A slot's hyper-parameters hold from a step on. Raises ProtocolError for what cannot be meant, and
        PushRefusedError for one change too many."""
        numbers = dict(zip(message.names, message.numbers, strict=False))
        if not len(message.names) == len(message.numbers) == len(numbers):
            raise ProtocolError(f"Hyper.names: {len(message.names)} with {len(message.numbers)} numbers, or one twice")
        index = message.key[0] if message.key else -1
        if not index < len(self.description.keys):
            raise ProtocolError(f"Hyper.key: {index}, there are {len(self.description.keys)}")
        key = None if index < 0 else self.description.keys[index]
        for name, number in numbers.items():
            try:
                self.hyper.scope(key, name).checked(slot, number)
            except ValueError as error:
                raise ProtocolError(f"Hyper.numbers: {error}") from error
        if key is not None and not self.contributed([index]):
            return
        most, count = MAX_CHANGES * self.description.slots, self.hyper.kept
        # Numbers of a step that every key has applied are asked for no more.
        ruled = [one for one in self.all_buckets.values() if one.spec.is_ruled]
        if count >= most:
            self.hyper.keep(max(2, most - 1), max((int(one.added.max()) for one in ruled), default=0))
        elif count % FORGET_EVERY + len(numbers) >= FORGET_EVERY:
            self.hyper.forget(min((int(one.versions.min()) for one in ruled), default=0))
        if self.hyper.kept >= most:
            raise PushRefusedError(f"{most} changes wait for their steps already")
        for name, number in numbers.items():
            self.hyper.set(message.step, slot, "" if key is None else key.key, name, number)
        for one in self.all_buckets.values():
            one.spec.hyper.constant = None
        bucket = None if key is None else self.buckets.get(self._routing.bucket_of[index])
        if key is not None and bucket is not None and index not in bucket.spec.hyper_by_key:
            # A bucket whose keys have numbers of their own is updated key by key.
            bucket.spec.hyper_by_key[index] = self.hyper.of(key, bucket.spec.rule)

    def _next_step(self, slot: int, key: str) -> int:
        """The first step of which nothing is in from a slot: of a key, or if that is empty of all that have the store's
        rule."""
        if key:
            ranges = self.contributed([[one.key for one in self.description.keys].index(key)])
        else:
            ranges = {
                number: Ranges((0, bucket.count))
                for number, bucket in self.all_buckets.items()
                if bucket.spec.is_ruled and slot in bucket.spec.slots and self._key_of(number).rule is None
            }
        found = [0]
        for number, some in ranges.items():
            arrived = self.all_buckets[number].arrived[self.all_buckets[number].indices[slot]]
            found += [int(arrived[low:high].max()) for low, high in some]
        return max(found)

    def _key_of(self, number: int) -> KeyDescription:
        """The first key of a bucket, as which all of its keys are updated."""
        return self.description.keys[self._routing.buckets[number].keys[0]]

    def waits_for(self, wait: PullWait, among: Collection[int] | None = None) -> tuple[str, list[int]]:
        """What an open pull waits for, in words, and the slots that are missing: none where all was answered. `among`:
        only what it waits for of one of these slots. There may be many pulls: only those buckets and tables are looked
        at then to which such a slot contributes, and all where a gate lets any slot hold them."""
        found = "every slice was answered", list[int]()
        if wait.rows is not None and wait.rows.ids is None:
            found = f"the ids of key {wait.rows.table.spec.key!r} have not all come", []
        for number in wait.unanswered:
            bucket = self.all_buckets[number]
            if among is None or self.gate is not None or any(slot in among for slot in bucket.spec.slots):
                found = bucket.pull_waits_for(wait)
                if any(among is None or slot in among for slot in found[1]):
                    break
        return found

    def step_waits_for(self, step: int) -> tuple[str, list[int]]:
        """What a step that is not measured waits for. Raises ProtocolError where steps are not committed."""
        text, missing = self.step_gate("Measure").missing(step)
        if missing:
            return text, missing
        for bucket in self.all_buckets.values():
            behind = bucket.arrived.min(axis=0) <= step if bucket.spec.slots else np.zeros(0, np.bool_)
            if behind.any():  # The first slice that has not merged it.
                at = int(behind.argmax())
                text, missing = bucket.step_waits_for(at)
                return f"{bucket.spec.key_named(at)} {text}", missing
        for bucket in self.all_buckets.values():
            if bucket.spec.slots and (uninitialized := bucket.uninitialized(0, bucket.count)).any():
                return bucket.uninitialized_named(int(uninitialized.argmax())), []
        return text, missing

    def step_gate(self, message: str) -> StepGate:
        """The gate, for a message of this kind. Raises ProtocolError where steps are not committed."""
        if self.gate is None:
            raise ProtocolError(f"{message}.step: the job's steps are not committed")
        return self.gate
