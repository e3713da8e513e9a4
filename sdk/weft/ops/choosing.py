"""Operators that choose and order elements; how many they choose may be known only in a step."""

from __future__ import annotations

import numpy as np

from weft.expression import Expression, Operand, apply_many
from weft.ops.generic import Name, labelled, one


def top_k(
    x: Operand, k: int | Expression, axis: int = -1, *, largest: bool = True, name: Name = None
) -> tuple[Expression, Expression]:
    """(the k largest or smallest elements along `axis`, sorted, where they are); of equals the first come first."""
    count = k if isinstance(k, Expression) else np.array([k], dtype=np.int64)
    attributes = {"axis": axis, "largest": int(largest)}
    values, places = apply_many("TopK", (x, count), attributes, requested=2, label=labelled(name, "TopK"))
    return values, places


def unique(
    x: Operand, axis: int | None = None, *, sort: bool = True, name: Name = None
) -> tuple[Expression, Expression, Expression, Expression]:
    """(the distinct elements, or slices along `axis`; where each was first; each element's own; how often each is)."""
    attributes = {"axis": axis, "sorted": int(sort)}
    results = apply_many("Unique", (x,), attributes, requested=4, label=labelled(name, "Unique"))
    return results[0], results[1], results[2], results[3]


def non_zero(x: Operand, *, name: Name = None) -> Expression:
    """Where x is not zero: a row for each of its dimensions, a column for each such element."""
    return one("NonZero", x, name=name)


def compress(x: Operand, condition: Operand, axis: int | None = None, *, name: Name = None) -> Expression:
    """The elements, or the slices along `axis`, whose condition is true; a shorter condition leaves out the rest."""
    return one("Compress", x, condition, axis=axis, name=name)


def reverse_sequence(
    x: Operand, lengths: Operand, *, batch_axis: int = 1, time_axis: int = 0, name: Name = None
) -> Expression:
    """Of each sample the first `lengths` elements along `time_axis` in reverse order, the others where they were."""
    return one("ReverseSequence", x, lengths, batch_axis=batch_axis, time_axis=time_axis, name=name)
