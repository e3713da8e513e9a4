"""A node's inputs as arrays: the checker has made sure that they are there, this function tells mypy."""

from __future__ import annotations

from collections.abc import Sequence

from weft_kernels.kernel import Array


def required(inputs: Sequence[Array | None], count: int | None = None) -> tuple[Array, ...]:
    """The first `count` inputs (all of them where it is left out). Raises ValueError where one is left out."""
    present = tuple(array for array in inputs[:count] if array is not None)
    if len(present) != (len(inputs) if count is None else count):
        raise ValueError(f"an input that must be there is left out: {[array is not None for array in inputs]}")
    return present


def optional(inputs: Sequence[Array | None], index: int) -> Array | None:
    """Input `index`, or None where the node leaves it out or ends before it."""
    return inputs[index] if index < len(inputs) else None
