"""What follows on a shard from something that came. Values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft_kvstore.arrays.ranges import Range
from weft_kvstore.lot.part import PlainLot
from weft_kvstore.lot.state import Arrival
from weft_kvstore.merging.pull_wait import PullWait
from weft_kvstore.units.unit_state import AnyUnit


class Taken(NamedTuple):
    """What follows from something that came: `units` may now merge, and so may `arrivals` of lots. Where values were
    set, units have `changed` or ranges of lots have, and pulls may have waited for it; where the last ids of a `pull`
    came, units can answer it instead."""

    units: Sequence[AnyUnit] = ()
    arrivals: Sequence[tuple[PlainLot, Arrival]] = ()
    changed: bool = False
    ranges: Sequence[tuple[PlainLot, Range]] = ()
    pull: PullWait | None = None
