"""A shard's hyper-parameters, of all its lots and units, and their changes while the job runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from weft_graph.program import Update
from weft_kernels.rules.record import Rule
from weft_kvstore.description.check import hyper_of, is_ruled, rule_of
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.hyper.agreement import HyperAgreement
from weft_kvstore.hyper.key_hyper import KeyHyper
from weft_kvstore.hyper.range import Least, check_range, range_of
from weft_kvstore.hyper.timeline import HyperTimeline
from weft_kvstore.lot.part import PlainLot
from weft_kvstore.lot.spec import LotSpec
from weft_kvstore.sharding.routing import Routing
from weft_kvstore.units.key_rules import KeyRules
from weft_kvstore.units.unit_state import AnyUnit
from weft_kvstore.wire.codec import ProtocolError

NOTHING = (0, "nobody has begun")


class LiveHyper:
    """`lots` and `units`, by number of the lot, are those of the shard, once it has them."""

    def __init__(
        self,
        description: StoreDescription,
        routing: Routing,
        shard: int,
        lots: Mapping[int, PlainLot],
        units: Mapping[int, AnyUnit],
    ) -> None:
        self.agreement = HyperAgreement(self, decides=shard == 0)
        self._description = description
        self._routing = routing
        self._shard = shard
        self._lots = lots
        self._units = units
        self._job = HyperTimeline()
        self._ranges: dict[str, Least] = {}
        """Of numbers of the whole job, for it takes a look at every key to find one."""

    def numbers(self, key: KeyDescription, rule: Rule) -> KeyHyper:
        """Those of a key, or of those that are updated like it, under the rule that they have."""
        values = {**rule.hyper, **hyper_of(self._description, key)}
        job = self._job if key.rule is None else None  # What is changed for the job is of another rule.
        return KeyHyper(values, key.multipliers, job=job, described=key.hyper or ())

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
            return self._begun(self._routing.lot_of[place], place)
        return max((self._begun(lot, None) for lot in (*self._lots, *self._units)), default=NOTHING)

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

    def _range_of(self, key: KeyDescription | None, name: str) -> Least:
        if key is not None:
            return range_of(self._description, key, name)
        if name not in self._ranges:
            self._ranges[name] = range_of(self._description, None, name)
        return self._ranges[name]

    def _own(self, place: int, *, make: bool) -> HyperTimeline | None:
        """What is changed for one key; None where it has nothing here, or nothing was and none is to be made."""
        lot = self._routing.lot_of[place]
        if lot in self._units:
            return self._units[lot].spec.hyper.own
        plain = self._lots.get(lot)
        if plain is None or self._shard not in self._routing.runs[place]:
            return None
        spec = plain.state.spec
        if place not in spec.own:
            if not make:  # A lot whose keys have numbers of their own is updated key by key.
                return None
            spec.own[place] = self.numbers(self._description.keys[place], spec.rule)
        return spec.own[place].own

    def _begun(self, lot: int, place: int | None) -> tuple[int, str]:
        unit = self._units.get(lot)
        if unit is not None:
            return unit.begun() if _is_ruled(unit.spec) else NOTHING
        plain = self._lots.get(lot)
        if plain is None or not _is_ruled(plain.state.spec):
            return NOTHING
        if place is None:
            return plain.state.begun(0, len(plain.state))
        if self._shard not in self._routing.runs[place]:
            return NOTHING
        first = self._routing.first_in_lot[place][self._shard]
        return plain.state.begun(first, first + len(self._routing.runs[place][self._shard]))

    def _least(self) -> int:
        """The first step that is not applied somewhere: none before it is asked for any more."""
        in_lots = [int(one.state.steps.version.min()) for one in self._lots.values() if _is_ruled(one.state.spec)]
        return min(in_lots + [one.version for one in self._units.values() if _is_ruled(one.spec)], default=0)


def _is_ruled(spec: LotSpec | KeyRules) -> bool:
    return spec.update is Update.RULE and bool(spec.slots)
