"""Dimensions that are numbers or names, and arithmetic with them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import Final

# --- Dimensions: numbers, names, and what sums and products make of them: `4*batch`, `batch*tokens+8*batch+10` --------
# A dimension that holds a name is text, a polynomial with whole coefficients: `tokens-1` is one too. Its form is
# canonical: in a product the number first, then the names in order; of a sum's terms those of most names first, then
# by their names, the number last. So dimensions that are equal for any sizes are equal texts.


Dim = int | str
"""A dimension: a number, or a text in which names stand for numbers."""

UNKNOWN_PREFIX: Final = "?"
"""Begins the name of a dimension that only the values of a step decide: how many elements are not zero."""

MAX_TERMS: Final = 64
"""Terms of a sum. A product has as many as its factors' multiplied, so a few nodes could ask for any number."""

MAX_NAMES: Final = 64
"""Names in one product, each counted as often as it stands there: a value times itself has twice as many."""

_SHOWN: Final = 64
"""Characters of a node's name in the name of a dimension."""

_TIMES = "*"
_PLUS = "+"
_MINUS = "-"

_Names = tuple[str, ...]
_Terms = Mapping[_Names, int]
"""The coefficient of each product of names, which are in order; that of `()` is the number."""


class DimensionError(ValueError):
    """A dimension would be a sum of more than `MAX_TERMS` terms, or one of them a product of over `MAX_NAMES` names."""


def is_unknown(dim: Dim) -> bool:
    """Whether the dimension holds a name that no input fills."""
    return isinstance(dim, str) and UNKNOWN_PREFIX in dim


def agree(a: Dim, b: Dim) -> bool:
    """Whether the dimensions may be equal in a step: they are, or one is known only then."""
    return a == b or is_unknown(a) or is_unknown(b)


def agree_all(some: Sequence[Dim], others: Sequence[Dim]) -> bool:
    """Whether as many dimensions may be equal, each to the other's, in a step."""
    return len(some) == len(others) and all(map(agree, some, others))


def settled(a: Dim, b: Dim) -> Dim:
    """Of two dimensions that are equal in every step, the one that says more."""
    return b if is_unknown(a) else a


def unknown_of(*parts: Dim) -> Dim:
    """The name of a dimension that follows from others as no polynomial says: the same for the same parts."""
    return UNKNOWN_PREFIX + sha256("|".join(map(str, parts)).encode()).hexdigest()[:16]


def unknown_at(node: str, number: int) -> Dim:
    """The name of dimension `number` of those that only a step decides at the node, the same in every inference."""
    plain = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in node[:_SHOWN])
    exact = "" if plain == node else "~" + sha256(node.encode()).hexdigest()[:8]
    return f"{UNKNOWN_PREFIX}{plain}{exact}" + (f".{number}" if number else "")


def product(dims: Iterable[Dim]) -> Dim:
    """The number of elements that the dimensions hold; of none it is 1, and 0 if any dimension is 0."""
    return _text(_multiplied(dims))


def total(dims: Iterable[Dim]) -> Dim:
    """The sum of the dimensions; of none it is 0."""
    terms = Counter[_Names]()
    for dim in dims:
        _add(terms, _terms(dim))
    return _text(terms)


def terms_of(dim: Dim) -> Mapping[tuple[str, ...], int]:
    """The coefficient of each product of names, which are in order; that of `()` is the number."""
    return _terms(dim)


def of_terms(terms: Mapping[tuple[str, ...], int]) -> Dim:
    """The dimension of these terms, none of whose coefficients is 0."""
    return _text(terms)


def quotient(whole: Iterable[Dim], part: Iterable[Dim]) -> Dim | None:
    """What `part` must be multiplied by to give `whole`, or None where nothing does for any sizes."""
    left, divisor = dict(_multiplied(whole)), _multiplied(part)
    if not divisor:
        return None
    # Division of polynomials: each turn takes the first term away, and no later one brings it back.
    head = min(divisor, key=_place)
    result = Counter[_Names]()
    while left:
        first = min(left, key=_place)
        names = _without(first, head)
        if names is None or left[first] % divisor[head]:
            return None
        times = left[first] // divisor[head]
        _add(result, {names: times})
        for other, count in divisor.items():
            key = _joined(names, other)
            left[key] = left.get(key, 0) - times * count
            if left[key] == 0:
                del left[key]
    return _text(result)


def bound(dim: Dim, values: Mapping[str, int]) -> Dim:
    """The dimension with the names of `values` filled; it stays a text while it holds another name."""
    filled = Counter[_Names]()
    for names, count in _terms(dim).items():
        factor = math.prod(values[name] for name in names if name in values)
        _add(filled, {tuple(name for name in names if name not in values): count * factor})
    return _text(filled)


def at_most(dim: Dim, most: Mapping[str, int]) -> Dim:
    """The largest that the dimension can be where names of dimensions that a step decides stand for `most` at most."""
    kept = {names: count for names, count in _terms(dim).items() if count > 0 or not any(map(is_unknown, names))}
    return bound(_text(kept), most)


def _multiplied(dims: Iterable[Dim]) -> _Terms:
    terms: _Terms = {(): 1}
    for dim in dims:
        made = Counter[_Names]()
        for names, count in terms.items():
            _add(made, {_joined(names, other): count * factor for other, factor in _terms(dim).items()})
        terms = made
    return terms


def _add(terms: Counter[_Names], more: _Terms) -> None:
    for names, count in more.items():
        terms[names] += count
        if not terms[names]:
            del terms[names]
    if len(terms) > MAX_TERMS:
        raise DimensionError(f"a dimension is a sum of more than {MAX_TERMS} terms")


@lru_cache(maxsize=4096)
def _terms(dim: Dim) -> _Terms:
    terms = Counter[_Names]()
    for term in filter(None, str(dim).replace(_MINUS, _PLUS + _MINUS).split(_PLUS)):
        number, names = -1 if term.startswith(_MINUS) else 1, []
        for factor in term.removeprefix(_MINUS).split(_TIMES):
            if factor.isdecimal():
                number *= int(factor)
            else:
                names.append(factor)
        _add(terms, {tuple(sorted(names)): number})
    return MappingProxyType(terms)


def _text(terms: _Terms) -> Dim:
    if not any(names for names in terms):
        return terms.get((), 0)
    first, *others = (_term(names, terms[names]) for names in sorted(terms, key=_place))
    return first + "".join(term if term.startswith(_MINUS) else _PLUS + term for term in others)


def _term(names: _Names, count: int) -> str:
    sign = _MINUS if count < 0 else ""
    return sign + _TIMES.join(([] if abs(count) == 1 and names else [str(abs(count))]) + list(names))


def _place(names: _Names) -> tuple[int, _Names]:
    """Sorts terms: those of most names first. A product's place never changes the order of what it multiplies."""
    return -len(names), names


def _joined(names: _Names, others: _Names) -> _Names:
    if len(names) + len(others) > MAX_NAMES:
        raise DimensionError(f"a dimension is a product of more than {MAX_NAMES} names")
    return tuple(sorted((*names, *others)))


def _without(names: _Names, part: _Names) -> _Names | None:
    left = Counter(names)
    left.subtract(part)
    return None if min(left.values(), default=0) < 0 else tuple(sorted(left.elements()))


# --- Amounts: whole numbers that dimensions are computed from, as far as they are known before a step -----------------
# An amount is a number, a text of the form of a dimension, or None where nothing is known. A name of an input's
# dimension stands for at least 1, one that only a step decides for at least 0: what is decided by that is decided
# anew, with numbers, before anything runs. What a polynomial cannot say (a quotient that does not come out even, the
# larger of two) gets a name of its own, the same one for the same parts.


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
