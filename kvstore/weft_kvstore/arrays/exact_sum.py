"""Sums of numbers without any rounding, so that no order or grouping of them can be told from the result. Pure.

A sum is an integer in units of 2^-1130, below which no product of float64's bits lies. On the wire it is a few float64
numbers whose exact sum it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from weft_kvstore.arrays.array import Array

UNIT_EXPONENT: Final = -1130
MANTISSA_BITS: Final = 53
HALF_BITS: Final = 26


def exact_sum(values: Array) -> int | None:
    """The sum of values (n) float64, of at most 2^36, in units of 2^-1130; None where one of them is not finite."""
    if not np.isfinite(values).all():
        return None
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(mantissas, MANTISSA_BITS).astype(np.int64)
    distinct, place = np.unique(exponents, return_inverse=True)
    high, low = np.zeros(len(distinct), np.int64), np.zeros(len(distinct), np.int64)
    np.add.at(high, place, whole >> HALF_BITS)
    np.add.at(low, place, whole & ((1 << HALF_BITS) - 1))
    shifts = distinct.astype(np.int64) - MANTISSA_BITS - UNIT_EXPONENT
    columns = zip(high.tolist(), low.tolist(), shifts.tolist(), strict=True)
    terms: list[int] = [((up << HALF_BITS) + down) << shift for up, down, shift in columns]
    return sum(terms)


def terms_of(total: int) -> list[float]:
    """Float64 numbers, the largest first, whose exact sum is `total`, which is at least 0; infinity beyond float64."""
    terms: list[float] = []
    while total:
        shift = max(total.bit_length() - MANTISSA_BITS, 0)
        head = total >> shift
        try:
            terms.append(math.ldexp(float(head), shift + UNIT_EXPONENT))
        except OverflowError:
            return [math.inf]
        total -= head << shift
    return terms


def norm_of(terms: Iterable[float]) -> float:
    """The root of the sum of squares: the sum is rounded once, so the order of the terms is nothing."""
    try:
        return math.sqrt(math.fsum(terms))
    except (OverflowError, ValueError):
        return math.inf
