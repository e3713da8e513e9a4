"""What a table's description must be, and how a growing one's rows come and go. Pure."""

from __future__ import annotations

import math

from weft_graph.program import Update
from weft_kvstore.description.first import is_given
from weft_kvstore.description.records import EvictionDescription, GrowthDescription, KeyDescription
from weft_kvstore.settings import MAX_ROW_BYTES


def wrong_table(key: KeyDescription) -> str | None:
    """The first thing that is wrong with a table, in words; None where nothing is."""
    if not key.shape:
        return "a scalar is no table"
    if key.whole:
        return "a table is cut by rows, so it cannot be whole"
    if key.update is not Update.RULE and key.slots:  # A frozen table is updated by nothing.
        return f"a table is updated by the rule, not by {key.update.value}"
    if key.row_bytes > MAX_ROW_BYTES:
        return f"a row has {key.row_bytes} bytes, more than {MAX_ROW_BYTES}"
    return None if key.growth is None else _wrong_growth(key, key.growth)


def _wrong_growth(key: KeyDescription, growth: GrowthDescription) -> str | None:
    if key.shape[0]:
        return f"a growing table has no row at first, not {key.shape[0]}"
    if not 1 <= growth.uses < 1 << 32:
        return f"growth.uses: 1 to 2^32 - 1, not {growth.uses}"
    if not 0 < growth.probability <= 1:
        return f"growth.probability: above 0 and at most 1, not {growth.probability}"
    if growth.uses > 1 and growth.probability < 1:
        return "growth: an id is admitted by uses or by probability, not by both"
    if is_given(key) and (growth.uses > 1 or growth.probability < 1):
        return "growth: rows that are set are admitted by that, not by uses"
    return None if growth.eviction is None else _wrong_eviction(growth.eviction)


def _wrong_eviction(eviction: EvictionDescription) -> str | None:
    if eviction.every < 1:
        return f"growth.eviction.every: at least 1, not {eviction.every}"
    if eviction.age is None and eviction.score is None:
        return "growth.eviction: neither age nor score"
    if eviction.age is not None and eviction.age < 0:
        return f"growth.eviction.age: at least 0, not {eviction.age}"
    if eviction.score is not None and not 0 < eviction.score < math.inf:
        return f"growth.eviction.score: a number above 0, not {eviction.score}"
    if not 0 < eviction.decay <= 1:
        return f"growth.eviction.decay: above 0 and at most 1, not {eviction.decay}"
    return None
