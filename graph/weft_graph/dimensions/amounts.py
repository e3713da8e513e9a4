"""Amounts: whole numbers that dimensions are computed from, as far as they are known before a step.

An amount is a number, a text of the form of a dimension, or None where nothing is known. A name of an input's
dimension stands for at least 1, one that only a step decides for at least 0: what is decided by that is decided anew,
with numbers, before anything runs. What a polynomial cannot say (a quotient that does not come out even, the larger of
two) gets a name of its own, the same one for the same parts.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft_graph.dimensions.dims import (
    MAX_TERMS,
    Dim,
    is_unknown,
    of_terms,
    product,
    quotient,
    terms_of,
    total,
    unknown_of,
)

Amount = int | str | None


def plus(a: Amount, b: Amount) -> Amount:
    """a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return None if a is None or b is None else total((a, b))


def minus(a: Amount, b: Amount) -> Amount:
    """a - b."""
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return None if a is None or b is None else total((a, product((-1, b))))


def times(a: Amount, b: Amount) -> Amount:
    """a * b; 0 times anything is 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if 0 in {a, b}:
        return 0
    if a is not None and b is not None and len(terms_of(a)) * len(terms_of(b)) > MAX_TERMS:
        return None  # most likely a sum of too many terms, and work without end to find out
    return None if a is None or b is None else product((a, b))


def is_natural(a: Amount) -> bool:
    """Whether the amount is never below 0."""
    least = _least(a)
    return least is not None and least >= 0


def sign(a: Amount) -> int | None:
    """Of the amount, for all sizes: 1, 0 or -1; None where sizes decide."""
    if a == 0:
        return 0
    least, most = _least(a), _least(minus(0, a))
    if least is not None and least > 0:
        return 1
    return -1 if most is not None and most > 0 else None


def _least(a: Amount) -> int | None:
    """The least that the amount can be, or None where nothing bounds it."""
    if a is None:
        return None
    terms = terms_of(a)
    if any(count < 0 for names, count in terms.items() if names):
        return None
    return sum(count for names, count in terms.items() if not any(map(is_unknown, names)))


def over(a: Amount, b: Amount) -> Amount:
    """a / b: of numbers rounded towards 0, of texts down, which is the same for what a dimension is made of."""
    if a is None or b is None or b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if isinstance(b, int):
        return None if b < 0 else _shared(a, b)
    even = quotient((a,), (b,)) if is_natural(a) and is_natural(b) else None
    return unknown_of("over", a, b) if even is None else even


def _shared(a: int | str, count: int) -> Amount:
    """What divides leaves the quotient: of `4*batch+tokens+5` over 4 it is `batch+1` and a name."""
    terms = terms_of(a)
    whole = of_terms({names: number // count for names, number in terms.items() if number // count})
    rest = of_terms({names: number % count for names, number in terms.items() if number % count})
    return whole if isinstance(rest, int) else total((whole, unknown_of("over", rest, count)))


def remainder(a: Amount, b: Amount) -> Amount:
    """What is left of a after b * (a / b); it has the sign of b, as Mod's of whole numbers."""
    if a is None or b is None or b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if not is_natural(b):
        return None
    if isinstance(a, int) and a < 0 and is_natural(plus(a, b)):
        return plus(a, b)
    if not is_natural(a):
        return unknown_of("remainder", a, b)
    return minus(a, times(b, over(a, b))) if isinstance(b, int) else unknown_of("remainder", a, b)


def larger(a: Amount, b: Amount) -> Amount:
    """The larger of the two."""
    if is_natural(minus(a, b)):
        return a
    if is_natural(minus(b, a)):
        return b
    return unknown_of("larger", *_ordered(a, b)) if is_natural(a) or is_natural(b) else None


def smaller(a: Amount, b: Amount) -> Amount:
    """The smaller of the two."""
    if is_natural(minus(a, b)):
        return b
    if is_natural(minus(b, a)):
        return a
    return unknown_of("smaller", *_ordered(a, b)) if is_natural(a) and is_natural(b) else None


def multiplied(amounts: Iterable[Amount]) -> Amount:
    """The product of all."""
    result: Amount = 1
    for amount in amounts:
        result = times(result, amount)
    return result


def added(amounts: Iterable[Amount]) -> Amount:
    """The sum of all."""
    result: Amount = 0
    for amount in amounts:
        result = plus(result, amount)
    return result


def as_dim(a: int | str) -> Dim:
    """The amount as a dimension: itself, also a number below 0; a name of its own where a text is always below 0."""
    return unknown_of("amount", a) if isinstance(a, str) and sign(a) == -1 else a


def _ordered(a: Amount, b: Amount) -> tuple[Dim, ...]:
    return tuple(sorted((amount for amount in (a, b) if amount is not None), key=str))
