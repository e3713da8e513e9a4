"""What a job takes of a shard from its first moment on: a pure function of the description."""

from __future__ import annotations

from typing import Final

from weft_graph.program import Update
from weft_kvstore.description.check import rule_of
from weft_kvstore.description.key_name import BARRIER_KEY
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.quotas import Holds
from weft_kvstore.sharding.routing import routing_of

NOTED_BYTES: Final = 8 * 12
"""Of a slice, whatever its size: its bounds, key, priority, version, updates, and what of it is lent or measured."""

NOTED_OF_A_SLOT: Final = 8 * 3
"""Of a slice and a slot that contributes: what of it came, what is merged, what it declared."""


def need_of(description: StoreDescription, shard: int) -> Holds:
    """Values, the rule's state, and what is noted of slices; tables of a known size with every row that they have. Rows
    of growing tables are counted when they come. A key of the store's own counts by its bytes alone: nobody has
    described it. The description is a legal one."""
    routing = routing_of(description)
    found = Holds()
    for place, key in enumerate(description.keys):
        arrays = arrays_of(description, key)
        table = routing.tables.get(place)
        if table is not None:
            rows = 0 if table.growth is not None else table.rows_on(shard)
            if rows or table.growth is not None:
                found += Holds(rows * (table.row_bytes * arrays + key.seen_bytes), 1, rows)
            continue
        run = routing.runs[place].get(shard, range(0))
        if run:
            noted = len(run) * (NOTED_BYTES + NOTED_OF_A_SLOT * len(key.slots))
            own = key.key == BARRIER_KEY
            found += Holds(routing.cuts[place].length(run.start, len(run)) * arrays + noted, 0 if own else 1)
    return found


def arrays_of(description: StoreDescription, key: KeyDescription) -> int:
    """How many arrays a shard keeps of a key: its value, and the rule's state."""
    return 1 + (len(rule_of(description, key).state) if key.update is Update.RULE else 0)
