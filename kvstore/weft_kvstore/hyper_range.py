"""Which numbers a hyper-parameter may be given: such as are finite in the type of every key that they are for. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from weft_kvstore.check import is_ruled
from weft_kvstore.description import KeyDescription, StoreDescription


class Least(NamedTuple):
    """The largest magnitude that a number may have, and the key by which it has none larger."""

    most: float
    key: KeyDescription | None


def range_of(description: StoreDescription, key: KeyDescription | None, name: str) -> Least:
    """Of a number that is given to one key, or with None to all that have it from the job; multiplied, it has to be
    finite in each key's own type, which the rule computes in."""
    if key is not None:
        return _range_of_one(key, name)
    found = [
        _range_of_one(one, name)
        for one in description.keys
        if is_ruled(one) and one.rule is None and name not in (one.hyper or ())
    ]
    return min(found, default=Least(math.inf, None), key=lambda one: one.most)


def check_range(name: str, value: float, range_: Least) -> None:
    """Raises ValueError, which names the key, for a number beyond it."""
    if abs(value) > range_.most:
        key = range_.key
        assert key is not None
        stretched = f", multiplied by {key.multipliers[name]:g}" if name in key.multipliers else ""
        raise ValueError(f"{name!r}: {value:g}{stretched} is infinite in {key.dtype}, which key {key.key!r} is of")


def _range_of_one(key: KeyDescription, name: str) -> Least:
    stretch = abs(key.multipliers.get(name, 1.0))
    return Least(float(np.finfo(key.dtype).max) / stretch if stretch else math.inf, key)
