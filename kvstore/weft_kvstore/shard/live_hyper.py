"""A shard's hyper-parameters, and how shards agree on their changes while the job runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from weft_kernels.rules.record import Rule
from weft_kvstore.bucket.bucket import Bucket
from weft_kvstore.description.check import hyper_of, is_ruled, rule_of
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.hyper import (
    MOST_AHEAD,
    MOST_WAITING,
    ChangeRefusedError,
    HyperHold,
    HyperTimeline,
    KeyHyper,
    Least,
    Proposal,
    check_range,
    range_of,
)
from weft_kvstore.sharding import Routing
from weft_kvstore.tables.state import TableState
from weft_kvstore.wire.codec import ProtocolError

# All shards use a change from a step on, or none does. A proposal is
#
#          | once                                                   | then, on this shard
# ---------|--------------------------------------------------------|--------------------------------------------------
# pending  | nobody has begun its step here, and none is pending    | its step, and what is later, is not applied
# taken    | shard 0 has decided so, when each shard was holding it | steps from its own on use the numbers
# given up | shard 0 has decided so: it was withdrawn, or took long | nothing changes
#
# Shard 0 decides, and remembers: so what was decided can be learned wherever the proposer dies. The other shards hold a
# proposal until they hear of it. In doubt they have any client ask shard 0, which gives up what it has not decided.

KEPT: Final = 64
"""Of proposals that were taken, and of those given up, so many are remembered. While a shard is in doubt of one that
was taken no other can be, so it is among them."""

NOTHING: Final = (0, "nobody has begun")


class LiveHyper(HyperHold):
    """`buckets` and `tables`, by number of the bucket, are those of the shard, once it has them. `version` counts the
    changes that were taken: the same ones, in the same order, on every shard. `decides`: this is shard 0.

    `_decided` has the last proposals: the version of each that was taken, and 0 of what was given up.
    """

    def __init__(
        self,
        description: StoreDescription,
        routing: Routing,
        shard: int,
        buckets: Mapping[int, Bucket],
        tables: Mapping[int, TableState],
    ) -> None:
        self.version = 0
        self.decides = shard == 0
        self._decided: dict[bytes, int] = {}
        self._description = description
        self._routing = routing
        self._shard = shard
        self._buckets = buckets
        self._tables = tables
        self._job = HyperTimeline()
        self._made: list[KeyHyper] = []
        self._ranges: dict[str, Least] = {}
        """Of numbers of the whole job, for it takes a look at every key to find one."""

    # --- A proposal: pending, and then taken or given up

    def propose(self, proposal: Proposal) -> None:
        """Holds a proposal. That it is held already changes nothing. Raises ChangeRefusedError."""
        if self.pending is not None:
            if self.pending.id == proposal.id:
                return
            detail = f"slot {self.pending.slot} is changing hyper-parameters at this moment; try again"
            raise ChangeRefusedError(detail, proposal.step)
        if self._decided.get(proposal.id) == 0:
            raise ChangeRefusedError("it took too long and was given up; try again", proposal.step)
        first, detail = self.begun(proposal.key_index)
        if proposal.step < first:
            raise ChangeRefusedError(f"{detail}; step {first} is possible", first)
        if proposal.step > first + MOST_AHEAD:
            far = f"step {proposal.step} is more than {MOST_AHEAD} steps ahead: step {first} has not begun"
            raise ChangeRefusedError(far, proposal.step)
        if self._waiting(proposal.key_index) >= MOST_WAITING:
            raise ChangeRefusedError(f"{MOST_WAITING} changes wait for their steps already", proposal.step)
        self.pending = proposal

    def decide(self, proposal: bytes, *, take: bool) -> int:
        """What becomes of a proposal: its version, or 0 where it is given up. It is decided once; `take` is the
        proposer's word that every shard holds it. Raises ProtocolError on a shard that does not decide."""
        if not self.decides:
            raise ProtocolError("HyperDecide: this is not shard 0")
        if proposal not in self._decided:
            holds = self.pending is not None and self.pending.id == proposal
            self._end(proposal, self.version + 1 if take and holds else 0)
        return self._decided[proposal]

    def settle(self, proposal: bytes, version: int) -> None:
        """Hears what was decided; again, it changes nothing. Raises ProtocolError for what cannot have been."""
        if self.decides:
            raise ProtocolError("HyperSettle: this is shard 0, which decides")
        if self.pending is None or self.pending.id != proposal:
            return
        if version not in {0, self.version + 1}:
            raise ProtocolError(f"HyperSettle.version: {version}, this shard has {self.version} changes")
        self._end(proposal, version)

    def after_stall(self, stall_s: float) -> None:
        """The shard stood still for so long: it could not hear the proposer."""
        if self.pending is not None:
            self.pending = replace(self.pending, since=self.pending.since + stall_s)

    def is_in_doubt(self, now: float, silence_s: float, linked: Mapping[int, bytes]) -> bool:
        """Whether its proposer is gone, or takes long; `linked` has the process of each slot that is connected."""
        pending = self.pending
        return pending is not None and (now - pending.since > silence_s or linked.get(pending.slot) != pending.process)

    def _end(self, proposal: bytes, version: int) -> None:
        pending = self.pending
        if version:
            assert pending is not None
            self.version = version
            self.change(pending.key_index, pending.step, pending.numbers)
        if pending is not None and pending.id == proposal:
            self.pending = None
        self._decided[proposal] = version
        alike = [one for one, of in self._decided.items() if bool(of) == bool(version)]
        if len(alike) > KEPT:
            del self._decided[alike[0]]

    # --- The numbers, and what changes them

    def numbers(self, key: KeyDescription, rule: Rule) -> KeyHyper:
        """Those of a key, or of those that are updated like it, under the rule that they have."""
        values = {**rule.hyper, **hyper_of(self._description, key)}
        job = self._job if key.rule is None else None  # What is changed for the job is of another rule.
        self._made.append(KeyHyper(values, key.multipliers, job=job, described=key.hyper or ()))
        return self._made[-1]

    def check(self, key_index: int | None, numbers: Mapping[str, float]) -> None:
        """Raises ProtocolError for a key that no rule updates, and for numbers that cannot be hyper-parameters."""
        keys = self._description.keys
        if key_index is not None and not key_index < len(keys):
            raise ProtocolError(f"Hyper.key: {key_index}, there are {len(keys)}")
        if key_index is not None and not is_ruled(keys[key_index]):
            raise ProtocolError(f"Hyper.key: {keys[key_index].key!r} is updated by no rule")
        key = keys[key_index] if key_index is not None else None
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

    def begun(self, key_index: int | None) -> tuple[int, str]:
        """The first step of which nobody has pushed or declared anything, of a key or of all; and who has begun the one
        before it, in words."""
        if key_index is not None:
            return self._begun(self._routing.bucket_of[key_index], key_index)
        return max((self._begun(bucket, None) for bucket in (*self._buckets, *self._tables)), default=NOTHING)

    def _waiting(self, key_index: int | None) -> int:
        """How many changes are kept for steps that are not applied, of a key or of the job."""
        timeline = self._job if key_index is None else self._own(key_index, make=False)
        if timeline is None:
            return 0
        timeline.forget(self._least())
        return len(timeline)

    def change(self, key_index: int | None, step: int, numbers: Mapping[str, float]) -> None:
        """These numbers hold from a step on."""
        timeline = self._job if key_index is None else self._own(key_index, make=True)
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

    def _own(self, key_index: int, *, make: bool) -> HyperTimeline | None:
        """What is changed for one key; None where it has nothing here, or nothing was and none is to be made."""
        bucket = self._routing.bucket_of[key_index]
        if bucket in self._tables:
            return self._tables[bucket].spec.hyper.own
        plain = self._buckets.get(bucket)
        if plain is None or self._shard not in self._routing.runs[key_index]:
            return None
        spec = plain.spec
        if key_index not in spec.own:
            if not make:  # A bucket whose keys have numbers of their own is updated key by key.
                return None
            spec.own[key_index] = self.numbers(self._description.keys[key_index], spec.rule)
        return spec.own[key_index].own

    def _begun(self, bucket: int, key_index: int | None) -> tuple[int, str]:
        table = self._tables.get(bucket)
        if table is not None:
            return table.begun() if table.spec.is_ruled else NOTHING
        plain = self._buckets.get(bucket)
        if plain is None or not plain.spec.is_ruled:
            return NOTHING
        if key_index is None:
            return plain.begun(0, len(plain))
        if self._shard not in self._routing.runs[key_index]:
            return NOTHING
        first = self._routing.first_in_bucket[key_index][self._shard]
        return plain.begun(first, first + len(self._routing.runs[key_index][self._shard]))

    def _least(self) -> int:
        """The first step that is not applied somewhere: none before it is asked for any more."""
        in_buckets = [int(one.steps.version.min()) for one in self._buckets.values() if one.spec.is_ruled]
        return min(in_buckets + [one.version for one in self._tables.values() if one.spec.is_ruled], default=0)
