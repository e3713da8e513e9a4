"""Dimensions and their products. A product that holds a name is a name too: `4*batch`, `batch*tokens`.

Its form is canonical (the number first, then the names in order), so equal products are equal names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

Dim = int | str
"""A dimension: a number, a name, or a product of names."""

_TIMES = "*"


def product(dims: Iterable[Dim]) -> Dim:
    """The number of elements that the dimensions hold; of none it is 1, and 0 if any dimension is 0."""
    number, names = _factors(dims)
    return _joined(number, names)


def quotient(whole: Iterable[Dim], part: Iterable[Dim]) -> Dim | None:
    """What `part` must be multiplied by to give `whole`, or None where nothing does or anything would."""
    number, names = _factors(whole)
    divisor, divisor_names = _factors(part)
    if divisor == 0 or number % divisor or divisor_names - names:
        return None
    return _joined(number // divisor, names - divisor_names)


def _factors(dims: Iterable[Dim]) -> tuple[int, Counter[str]]:
    number, names = 1, Counter[str]()
    for dim in dims:
        for factor in str(dim).split(_TIMES):
            if factor.isdecimal():
                number *= int(factor)
            else:
                names[factor] += 1
    return number, names


def _joined(number: int, names: Counter[str]) -> Dim:
    if not names or number == 0:
        return number
    words = [] if number == 1 else [str(number)]
    return _TIMES.join(words + sorted(names.elements()))


def bound(dim: Dim, values: Mapping[str, int]) -> Dim:
    """The dimension with the named factors filled; a product stays a name while one of its factors does."""
    number, names = _factors((dim,))
    filled = math.prod(values[name] ** count for name, count in names.items() if name in values)
    return _joined(number * filled, Counter({name: count for name, count in names.items() if name not in values}))
