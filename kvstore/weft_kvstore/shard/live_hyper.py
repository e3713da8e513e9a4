"""A shard's hyper-parameters, and the changes that slots make while the job runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from weft_kernels.rules.record import Rule
from weft_kvstore.arrays import Array
from weft_kvstore.bucket.bucket import Bucket
from weft_kvstore.bucket.steps import BucketSteps, UpdateSpec
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.hyper import HyperScope, HyperTimeline, KeyHyper
from weft_kvstore.sharding import Routing
from weft_kvstore.tables.state import TableState
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import Hyper

# A change is of a slot and a step, as a push is. No shard applies a step before each slot that contributes has pushed
# it, and a slot's change comes before its push: so each shard has the change before it applies the step, and no shard
# asks another.

MAX_CHANGES: Final = 1 << 16
"""Changes that are kept for each slot: for steps to come, and for keys that are behind others. Beyond that the earliest
are forgotten, of steps that some key has applied; a key may be pushed no more."""

FORGET_EVERY: Final = 16
"""So many changes of the job, or of a key, are kept before it is looked at which ones no step asks for any more: that
takes a look at every bucket."""


class LiveHyper:
    """`buckets` and `tables`, by number of the bucket, are those of the shard, once it has them."""

    def __init__(
        self,
        description: StoreDescription,
        routing: Routing,
        buckets: Mapping[int, Bucket],
        tables: Mapping[int, TableState],
    ) -> None:
        self._description = description
        self._routing = routing
        self._buckets = buckets
        self._tables = tables
        self._job = HyperTimeline()
        self._scopes: dict[tuple[int | None, str], HyperScope] = {}
        self._room = self._most = MAX_CHANGES * description.slots
        """Changes that may come before those are counted that are kept."""

    def numbers(self, key: KeyDescription, rule: Rule) -> KeyHyper:
        """Those of a key, or of those that are updated like it, under the rule that they have."""
        return KeyHyper.of(self._description, key, rule, self._job)

    def change(self, slot: int, message: Hyper) -> None:
        """A slot's numbers hold from a step on. Raises ProtocolError for what cannot be meant, and PushRefusedError for
        one change too many."""
        key_index, numbers = next(iter(message.key), None), dict(zip(message.names, message.numbers, strict=False))
        if not len(message.names) == len(message.numbers) == len(numbers):
            raise ProtocolError(f"Hyper.names: {len(message.names)} with {len(message.numbers)} numbers, or one twice")
        if key_index is not None and not key_index < len(self._description.keys):
            raise ProtocolError(f"Hyper.key: {key_index}, there are {len(self._description.keys)}")
        for name, number in numbers.items():
            try:
                self._scope(key_index, name).checked(slot, number)
            except ValueError as error:
                raise ProtocolError(f"Hyper.numbers: {error}") from error
        timeline = self._job if key_index is None else self._own(key_index)
        if timeline is None:  # The shard has nothing of the key.
            return
        if self._room <= 0:
            _, newest = self._applied()
            for _, one in self._timelines():
                one.keep(max(2, len(one) // 2), newest)
            self._room = self._most - sum(len(one) for _, one in self._timelines())
        if self._room <= 0:
            raise PushRefusedError(f"{self._most} changes wait for their steps already")
        self._room -= 1
        timeline.set(message.step, slot, numbers)
        if self._job.count == 1:
            for bucket in self._buckets.values():
                bucket.spec.hyper.constant = None
        if not len(timeline) % FORGET_EVERY:
            timeline.forget(self._applied()[0])

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot, and its unmerged pushes are forgotten: so are changes from the steps that
        it has to push again."""
        for key_index, timeline in self._timelines():
            timeline.withdraw(slot, self._next_step(slot, key_index))

    def _scope(self, key_index: int | None, name: str) -> HyperScope:
        """Raises ValueError."""
        if (key_index, name) not in self._scopes:
            key = None if key_index is None else self._description.keys[key_index]
            self._scopes[key_index, name] = HyperScope(self._description, key, name)
        return self._scopes[key_index, name]

    def _own(self, key_index: int) -> HyperTimeline | None:
        """What is changed for one key; None where it has nothing here."""
        number = self._routing.bucket_of[key_index]
        if number in self._tables:
            return self._tables[number].spec.hyper.own
        bucket = self._buckets.get(number)
        if bucket is None or key_index not in bucket.spec.part.key_indices:
            return None
        own = bucket.spec.hyper_by_key  # A bucket whose keys have numbers of their own is updated key by key.
        if key_index not in own:
            own[key_index] = self.numbers(self._description.keys[key_index], bucket.spec.rule)
        return own[key_index].own

    def _timelines(self) -> Iterator[tuple[int | None, HyperTimeline]]:
        """What was changed for the job (None), and for each key by its index."""
        yield None, self._job
        for number, table in self._tables.items():
            yield self._routing.buckets[number].keys[0], table.spec.hyper.own
        for bucket in self._buckets.values():
            for key_index, hyper in bucket.spec.hyper_by_key.items():
                yield key_index, hyper.own

    def _next_step(self, slot: int, key_index: int | None) -> int:
        """The first step of which nothing is in from a slot, of a key, or of all that have the job's numbers."""
        found = [0]
        for spec, steps, indices in self._parts():
            if slot in steps.indices and spec.is_ruled:
                has_job = key_index is None and spec.hyper.job is self._job
                found.append(int(steps.arrived[steps.indices[slot]][(indices == key_index) | has_job].max(initial=0)))
        return max(found)

    def _parts(self) -> Iterator[tuple[UpdateSpec, BucketSteps, Array]]:
        """How each bucket and table is updated, its steps, and the key of each slice."""
        for bucket in self._buckets.values():
            yield bucket.spec, bucket.steps, bucket.spec.part.key_indices
        for number, table in self._tables.items():
            yield table.spec, table.steps, np.array(self._routing.buckets[number].keys)

    def _applied(self) -> tuple[int, int]:
        """The first step that some key has not applied (numbers of later steps alone are asked for), and the first
        that no slot's push has applied to any key."""
        steps = [steps for spec, steps, _ in self._parts() if spec.is_ruled]
        least = min((int(one.version.min()) for one in steps), default=0)
        return least, max((int(one.through.max()) for one in steps), default=0)
