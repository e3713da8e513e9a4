"""Where new parts of sequences stand in caches: what TensorScatter and its gradient share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft_graph.attributes import as_int, as_str
from weft_graph.ir import AttributeValue
from weft_graph.shapes.broadcasting import normalised
from weft_kernels.kernel import Array


def sequence_axis(attributes: Mapping[str, AttributeValue], rank: int) -> int:
    """The sequences' axis, counted from the front."""
    return normalised(as_int(attributes["axis"]), rank)


def cache_places(
    xp: Any, starts: Array | None, shape: tuple[int, int, int], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, Array]:
    """(samples (batch, 1), places (batch, new)) that index a cache whose sequences are its axis 1.

    `starts` are on the host; `shape` is (batch, new, length of the cache). Raises ValueError, with the place, where
    a part would be written outside the cache.
    """
    batch, new, length = shape
    first = np.zeros(batch, dtype=np.int64) if starts is None else starts
    if as_str(attributes["mode"]) == "circular":
        # Taken round first, so that the largest of int64 has no sum beyond it.
        places = (first % max(length, 1))[:, None] + np.arange(new)
        places %= max(length, 1)
    else:
        wrong = (first < 0) | (first > length - new)
        if wrong.any():
            raise ValueError(f"{new} elements from {int(first[wrong][0])} on are not within a cache of {length}")
        places = first[:, None] + np.arange(new)
    return xp.arange(batch)[:, None], xp.asarray(places)
