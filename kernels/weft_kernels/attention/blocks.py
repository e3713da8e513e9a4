"""How the scores of all queries and keys are cut into blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from weft_kernels.attention.visible import Block

HOST_SCORES: Final = 1 << 18
"""Scores of a block, unless one query of a group has more: 1 MiB of float32, what a core's caches hold."""

DEVICE_SCORES: Final = 1 << 25
"""On a device a block must be large, for each one starts kernels: 128 MiB of float32."""

BANDED_QUERIES: Final = 128
"""Queries of a block at most where each sees but a part of the keys, so that what none of them sees is left out."""


def blocks(xp: Any, shape: tuple[int, ...], *, banded: bool) -> Iterator[Block]:
    """Blocks that cover scores of `shape` (batch, kv heads, group, queries, keys) once.

    Whole samples where several fit, else whole heads of one sample, else queries of one head.
    """
    batch, heads, group, queries, keys = shape
    rows = max(1, (HOST_SCORES if xp is np else DEVICE_SCORES) // max(1, group * keys))
    length = min(queries, rows, BANDED_QUERIES if banded else queries)
    heads_at_once = max(1, min(heads, rows // max(1, length)))
    batches_at_once = max(1, rows // max(1, length * heads)) if heads_at_once == heads else 1
    for first in range(0, batch, batches_at_once):
        for head in range(0, heads, heads_at_once):
            for query in range(0, queries, max(1, length)):
                yield Block(
                    slice(first, min(first + batches_at_once, batch)),
                    slice(head, min(head + heads_at_once, heads)),
                    slice(query, min(query + length, queries)),
                    slice(0, keys),
                )
