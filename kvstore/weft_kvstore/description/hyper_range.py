"""Which numbers the hyper-parameters of a key may be: such as are finite in its type, multiplied for it. Pure."""

from __future__ import annotations

import math

import numpy as np

from weft_kvstore.description.records import KeyDescription


def most_of(key: KeyDescription, name: str) -> float:
    """The largest magnitude that a hyper-parameter may have; the rule computes in the key's own type."""
    stretch = abs(key.multipliers.get(name, 1.0))
    return float(np.finfo(key.dtype).max) / stretch if stretch else math.inf


def told_beyond(key: KeyDescription, name: str, value: float) -> str:
    """In words: the number is beyond what it may be."""
    stretched = f", multiplied by {key.multipliers[name]:g}" if name in key.multipliers else ""
    return f"{name!r}: {value:g}{stretched} is infinite in {key.dtype}, which key {key.key!r} is of"
