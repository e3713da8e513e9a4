"""What each shard of a description will hold: a pure function of the description, to be read before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

from weft_graph.program import Update
from weft_kvstore.description.check import rule_of
from weft_kvstore.description.form import shown
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.sharding.routing import routing_of


@dataclass(frozen=True, slots=True)
class Holding:
    """A shard's part of one key. `parts` says which, in words; `nbytes` of values, `state_bytes` of the rule's state.

    Of a table, they are those of all its rows: memory is taken only for rows that were pushed or set.
    """

    key: KeyDescription
    parts: str
    nbytes: int
    state_bytes: int


def holdings(description: StoreDescription) -> list[list[Holding]]:
    """For each shard, what it holds of each of the user's keys, in their order. The description is a legal one."""
    routing = routing_of(description)
    users = {key.key for key in shown(description)}
    found: list[list[Holding]] = [[] for _ in description.shards]
    for place, key in enumerate(description.keys):
        if key.key not in users:
            continue
        kept = len(rule_of(description, key).state) if key.update is Update.RULE and key.slots else 0
        cut, table = routing.cuts[place], routing.tables.get(place)
        for shard, held in enumerate(found):
            if table is not None:
                count = table.rows_on(shard)
                parts, nbytes = f"{count:,} rows" if count else "", table.bytes_on(shard)
            else:
                run = routing.runs[place].get(shard, range(0))
                parts, nbytes = _told(run, cut.count), cut.length(run.start, len(run))
            if parts:
                held.append(Holding(key, parts, nbytes, nbytes * kept))
    return found


def _told(run: range, count: int) -> str:
    """Which of a key's slices these are; empty for none."""
    if not run:
        return ""
    if len(run) == count:
        return f"all {count} slices" if count > 1 else "all"
    return f"slices {run.start}-{run.stop - 1} of {count}" if len(run) > 1 else f"slice {run.start} of {count}"


def size(nbytes: int) -> str:
    """Bytes as people read them."""
    number = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
