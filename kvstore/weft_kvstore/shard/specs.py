"""How what a shard has of a job is updated: by bucket, and with hyper-parameters that change. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from weft_graph.program import Update
from weft_kernels.blocks import VECTOR_BLOCK
from weft_kernels.rules.record import Rule
from weft_kvstore.bucket.bucket import (
    BUCKET_PIECES,
    PIECE_CALLS,
    PIECE_ELEMENTS,
    PIECE_NODES,
    PlainBucket,
)
from weft_kvstore.bucket.gate import StepGate
from weft_kvstore.bucket.update import BucketSpec
from weft_kvstore.description.check import hyper_of, is_ruled, rule_of
from weft_kvstore.description.records import KeyDescription, StoreDescription, is_given
from weft_kvstore.hyper import HyperAgreement, HyperTimeline, KeyHyper, Least, check_range, range_of
from weft_kvstore.sharding import BucketKind, Routing
from weft_kvstore.tables.state import TableState
from weft_kvstore.tables.steps import TableSpec
from weft_kvstore.wire.codec import ProtocolError

# --- A shard's hyper-parameters, of all its buckets and tables, and their changes while the job runs ------------------


NOTHING = (0, "nobody has begun")


class LiveHyper:
    """`buckets` and `tables`, by number of the bucket, are those of the shard, once it has them."""

    def __init__(
        self,
        description: StoreDescription,
        routing: Routing,
        shard: int,
        buckets: Mapping[int, PlainBucket],
        tables: Mapping[int, TableState],
    ) -> None:
        self.agreement = HyperAgreement(self, decides=shard == 0)
        self._description = description
        self._routing = routing
        self._shard = shard
        self._buckets = buckets
        self._tables = tables
        self._job = HyperTimeline()
        self._made: list[KeyHyper] = []
        self._ranges: dict[str, Least] = {}
        """Of numbers of the whole job, for it takes a look at every key to find one."""

    def numbers(self, key: KeyDescription, rule: Rule) -> KeyHyper:
        """Those of a key, or of those that are updated like it, under the rule that they have."""
        values = {**rule.hyper, **hyper_of(self._description, key)}
        job = self._job if key.rule is None else None  # What is changed for the job is of another rule.
        self._made.append(KeyHyper(values, key.multipliers, job=job, described=key.hyper or ()))
        return self._made[-1]

    def check(self, place: int | None, numbers: Mapping[str, float]) -> None:
        """Raises ProtocolError for a key that no rule updates, and for numbers that cannot be hyper-parameters."""
        keys = self._description.keys
        if place is not None and not place < len(keys):
            raise ProtocolError(f"Hyper.key: {place}, there are {len(keys)}")
        if place is not None and not is_ruled(keys[place]):
            raise ProtocolError(f"Hyper.key: {keys[place].key!r} is updated by no rule")
        key = keys[place] if place is not None else None
        known = rule_of(self._description, key).hyper
        for name, number in numbers.items():
            if name not in known:
                raise ProtocolError(f"Hyper.names: the rule has no {name!r}")
            if not math.isfinite(number):
                raise ProtocolError(f"Hyper.numbers: {name!r} is {number}")
            try:
                check_range(name, number, self._range_of(key, name))
            except ValueError as error:
                raise ProtocolError(f"Hyper.numbers: {error}") from error

    def begun(self, place: int | None) -> tuple[int, str]:
        """See `Changed`."""
        if place is not None:
            return self._begun(self._routing.bucket_of[place], place)
        return max((self._begun(bucket, None) for bucket in (*self._buckets, *self._tables)), default=NOTHING)

    def waiting(self, place: int | None) -> int:
        """See `Changed`."""
        timeline = self._job if place is None else self._own(place, make=False)
        if timeline is None:
            return 0
        timeline.forget(self._least())
        return len(timeline)

    def change(self, place: int | None, step: int, numbers: Mapping[str, float]) -> None:
        """See `Changed`."""
        timeline = self._job if place is None else self._own(place, make=True)
        if timeline is not None:
            timeline.set(step, numbers)
            timeline.forget(self._least())
            for one in self._made:
                one.changed()

    def _range_of(self, key: KeyDescription | None, name: str) -> Least:
        if key is not None:
            return range_of(self._description, key, name)
        if name not in self._ranges:
            self._ranges[name] = range_of(self._description, None, name)
        return self._ranges[name]

    def _own(self, place: int, *, make: bool) -> HyperTimeline | None:
        """What is changed for one key; None where it has nothing here, or nothing was and none is to be made."""
        bucket = self._routing.bucket_of[place]
        if bucket in self._tables:
            return self._tables[bucket].spec.hyper.own
        plain = self._buckets.get(bucket)
        if plain is None or self._shard not in self._routing.runs[place]:
            return None
        spec = plain.state.spec
        if place not in spec.own:
            if not make:  # A bucket whose keys have numbers of their own is updated key by key.
                return None
            spec.own[place] = self.numbers(self._description.keys[place], spec.rule)
        return spec.own[place].own

    def _begun(self, bucket: int, place: int | None) -> tuple[int, str]:
        table = self._tables.get(bucket)
        if table is not None:
            return table.begun() if table.spec.is_ruled else NOTHING
        plain = self._buckets.get(bucket)
        if plain is None or not plain.state.spec.is_ruled:
            return NOTHING
        if place is None:
            return plain.state.begun(0, len(plain.state))
        if self._shard not in self._routing.runs[place]:
            return NOTHING
        first = self._routing.first_in_bucket[place][self._shard]
        return plain.state.begun(first, first + len(self._routing.runs[place][self._shard]))

    def _least(self) -> int:
        """The first step that is not applied somewhere: none before it is asked for any more."""
        in_buckets = [int(one.state.steps.version.min()) for one in self._buckets.values() if one.state.spec.is_ruled]
        return min(in_buckets + [one.version for one in self._tables.values() if one.spec.is_ruled], default=0)


# --- How a shard's buckets and tables are updated, read off the job's description -------------------------------------


class Specs:
    """Those of one shard; `rule` takes the place of the description's. Raises DescriptionError for a rule that there is
    not."""

    def __init__(
        self,
        description: StoreDescription,
        routing: Routing,
        shard: int,
        *,
        live: LiveHyper,
        gate: StepGate | None,
        rule: Rule | None = None,
        keeps_previous: bool = False,
    ) -> None:
        self._description = description
        self._routing = routing
        self._shard = shard
        self._live = live
        self._gate = gate
        self._rule = rule or rule_of(description)
        self._keeps_previous = keeps_previous

    def of_bucket(self, number: int) -> BucketSpec:
        """Of a bucket that is no table, whose keys are updated as the first of them is."""
        description, bucket = self._description, self._routing.buckets[number]
        key = description.keys[bucket.keys[0]]
        rule = self._rule_of(key)
        part = bucket.parts[self._shard]
        by_slice = key.update is Update.RULE and bucket.kind is BucketKind.PLAIN and not rule.anywhere
        return BucketSpec(
            **self._common(number, key),
            part=part,
            keys=description.keys,
            a_piece=BUCKET_PIECES * a_piece(description.rule),
            slices_a_piece=PIECE_CALLS * PIECE_NODES // nodes_of(description.rule) if by_slice else len(part),
            pushed=bucket.pushed,
            pulled=bucket.pulled,
            is_whole=bucket.kind is BucketKind.WHOLE,
            keeps_previous=self._keeps_previous,
        )

    def of_table(self, number: int) -> TableSpec:
        description = self._description
        key = description.keys[self._routing.buckets[number].keys[0]]
        return TableSpec(
            **self._common(number, key),
            key=key.key,
            priority=key.priority,
            given=is_given(key),
            a_piece=a_piece(description.rule if key.rule is None else key.rule),
        )

    def _common(self, number: int, key: KeyDescription) -> dict[str, Any]:
        """What `UpdateSpec` says, but for the size of a piece."""
        description, rule = self._description, self._rule_of(key)
        return {
            "number": number,
            "slots": key.slots,
            "update": key.update,
            "merge": description.merge,
            "mode": description.mode,
            "staleness": description.staleness if key.staleness is None else key.staleness,
            "rule": rule,
            "hyper": self._live.numbers(key, rule),
            "gate": self._gate,
            "hold": self._live.agreement,
        }

    def _rule_of(self, key: KeyDescription) -> Rule:
        return self._rule if key.rule is None and key.hyper is None else rule_of(self._description, key)


def a_piece(rule: str | Mapping[str, Any]) -> int:
    """Elements that the rule updates in some 50 ms at most; whole blocks, so that cutting changes no bit."""
    return PIECE_ELEMENTS * PIECE_NODES // nodes_of(rule) // VECTOR_BLOCK * VECTOR_BLOCK


def nodes_of(rule: str | Mapping[str, Any]) -> int:
    """Of a user's rule; `PIECE_NODES` where it has fewer, and for a built-in one."""
    nodes = () if isinstance(rule, str) or "graph" not in rule else rule["graph"]["nodes"]
    return max(len(nodes), PIECE_NODES)
