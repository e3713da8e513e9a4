"""What each shard of a description will hold, to be read before anything starts: `--check`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from weft_graph.program import Update
from weft_graph.program_text.listing import size_text
from weft_graph.rules.built_in import rule_name
from weft_kvstore.description.check import digest, rule_of
from weft_kvstore.description.form import BARRIER_KEY, placed_description, user_key
from weft_kvstore.description.records import KeyDescription, StoreDescription, codecs_of
from weft_kvstore.shard.links import SHOWN_DIGITS
from weft_kvstore.sharding import routing_of


class Holding(NamedTuple):
    """What a shard has of a key. `shown` says how much, in words; `nbytes` of values, `state_bytes` of the rule's
    state.

    Of a table, they are those of all its rows: memory is taken only for rows that were pushed or set.
    """

    key: KeyDescription
    shown: str
    nbytes: int
    state_bytes: int


def holdings(description: StoreDescription) -> list[list[Holding]]:
    """For each shard, what it holds of each of the user's keys, in their order. The description is a legal one."""
    routing = routing_of(description)
    found: list[list[Holding]] = [[] for _ in description.shards]
    for number, key in enumerate(description.keys):
        if key.key == BARRIER_KEY:
            continue
        states = len(rule_of(description, key).state) if key.update is Update.RULE and key.slots else 0
        slices, table = routing.slices[number], routing.tables.get(number)
        for shard, held in enumerate(found):
            if table is not None:
                count, shown, nbytes = table.rows_on(shard), f"{table.rows_on(shard):,} rows", table.bytes_on(shard)
            else:
                _, first, stop, begin, *_ = routing.ranges[number].get(shard, (0, 0, 0, 0))
                count, nbytes = stop - first, slices.start(begin + stop - first) - slices.start(begin)
                shown = f"{count} of {slices.count} slices"
            if count:
                held.append(Holding(key, shown, nbytes, nbytes * states))
    return found


def shown_holdings(path: Path) -> Iterator[str]:
    """Lines that say what each shard will hold. Raises OSError, and DescriptionError, which says where."""
    description = placed_description(path)
    links = ", links encrypted" if description.curve_keys else ""
    about = f"job {description.job!r}, {description.slots} slots, {description.mode.value}"
    shown_digest = digest(description).hex()[:SHOWN_DIGITS]
    yield f"{path}: {about}, rule {rule_name(description.rule)}{links}, digest {shown_digest}"
    for number, held in enumerate(holdings(description)):
        values, states = sum(one.nbytes for one in held), sum(one.state_bytes for one in held)
        where = f"shard {number} at {description.shards[number] or 'no endpoint yet'}"
        yield f"{where}: {size_text(values)}, and {size_text(states)} of state"
        for key, shown, nbytes, state_bytes in held:
            update = key.update.value if key.slots else "none"
            what = f"{user_key(key.key)!r}: {key.dtype}{list(key.shape)}, update {update}, {shown}"
            yield f"    {what}, {size_text(nbytes)}, and {size_text(state_bytes)} of state{_travel(key, description)}"


def _travel(key: KeyDescription, description: StoreDescription) -> str:
    """How the key's gradients and values are compressed, in a store that compresses some."""
    if description.compression is None and key.compression is None:
        return ""
    kinds = (None if codec is None else codec.kind for codec in codecs_of(key, description.compression))
    told = [f"{what} {kind}" for what, kind in zip(("gradients", "values"), kinds, strict=True) if kind]
    return f"; compressed: {', '.join(told) or 'nothing'}"
