"""Equations of Einsum: the labels of each operand's dimensions, and of the result's.

A label is a letter. The dimensions that an ellipsis stands for get letters that the equation does not use, counted from
the right, so that those of several operands meet as in broadcasting.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from weft_graph.dimensions import Dim, agree, settled
from weft_graph.shapes.broadcasting import broadcast
from weft_graph.types import Shape

_ELLIPSIS = "..."


@dataclass(frozen=True, slots=True)
class Equation:
    """The labels of the operands' dimensions and of the result's; `wide` are those of ellipses, which broadcast."""

    operands: tuple[str, ...]
    result: str
    wide: str = ""

    def __str__(self) -> str:
        return f"{','.join(self.operands)}->{self.result}"


def parsed(equation: str, ranks: Sequence[int]) -> Equation:
    """The equation for operands of these ranks. Raises ValueError, with the equation, where it does not fit them."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    shown = f"equation {equation!r}"
    if len(terms) != len(ranks):
        raise ValueError(f"{shown} is of {len(terms)} operands, given {len(ranks)}")
    widths = [_width(term, rank, shown) for term, rank in zip(terms, ranks, strict=True)]
    used = {letter for letter in equation if letter.isalpha()}
    free = [letter for letter in string.ascii_letters if letter not in used]
    if max(widths) > len(free):
        raise ValueError(f"{shown} has more dimensions than there are letters")
    wide = "".join(free[: max(widths)])
    operands = tuple(
        term.replace(_ELLIPSIS, wide[len(wide) - width :]) for term, width in zip(terms, widths, strict=True)
    )
    if not arrow:
        counts = Counter(letter for term in terms for letter in term.replace(_ELLIPSIS, ""))
        right = _ELLIPSIS + "".join(sorted(letter for letter, count in counts.items() if count == 1))
    _width(right, None, shown)
    result = right.replace(_ELLIPSIS, wide)
    known = set("".join(operands))
    if len(set(result)) < len(result) or not set(result) <= known:
        raise ValueError(f"{shown} has a result whose labels are not each once among the operands' labels")
    return Equation(operands, result, wide)


def _width(term: str, rank: int | None, shown: str) -> int:
    """How many dimensions the term's ellipsis stands for."""
    letters = term.replace(_ELLIPSIS, "", 1)
    if not all(letter in string.ascii_letters for letter in letters):
        raise ValueError(f"{shown} has a term {term!r}; terms are of letters and one '...' at most")
    if rank is None:
        return 0
    width = rank - len(letters)
    if width < 0 or (width and _ELLIPSIS not in term):
        raise ValueError(f"{shown} has a term {term!r} for an operand of {rank} dimensions")
    return width


def sizes_of(equation: Equation, shapes: Sequence[Shape]) -> dict[str, Dim]:
    """The dimension of each label. Raises ValueError where one label has two; those of an ellipsis broadcast."""
    sizes: dict[str, Dim] = {}
    for labels, shape in zip(equation.operands, shapes, strict=True):
        for label, dim in zip(labels, shape, strict=True):
            before = sizes.setdefault(label, dim)
            met = broadcast((before,), (dim,)) if label in equation.wide else _met(before, dim)
            if met is None:
                raise ValueError(f"label {label!r} is {before} in one operand and {dim} in another")
            sizes[label] = met[0]
    return sizes


def _met(a: Dim, b: Dim) -> Shape | None:
    return (settled(a, b),) if agree(a, b) else None
