"""Dimensions: numbers, names, and what sums and products make of them: `4*batch`, `batch*tokens+8*batch+10`.

A dimension that holds a name is text, a polynomial with whole coefficients: `tokens-1` is one too. Its form is
canonical: in a product the number first, then the names in order; of a sum's terms those of most names first, then by
their names, the number last. So dimensions that are equal for any sizes are equal texts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import Final

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
