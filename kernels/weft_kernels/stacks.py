"""Puts what the turns of a loop make together along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft_graph.shapes.bodies import Scanned
from weft_graph.types import TensorType, array_text
from weft_kernels.kernel import Array


class Whole:
    """The parts of a known number of turns, each written to its place as it comes."""

    def __init__(self, xp: Any, how: Scanned, turns: int, name: str) -> None:
        self._xp = xp
        self._how = how
        self._turns = turns
        self._name = name
        self._array: Array | None = None
        self._shape: tuple[int, ...] = ()

    def put(self, turn: int, part: Array) -> None:
        """Raises ValueError where the part is of another type than those before."""
        axis = self._how.axis
        if self._array is None:
            self._shape = part.shape
            shape = (*part.shape[:axis], self._turns, *part.shape[axis:])
            self._array = self._xp.empty(shape, dtype=part.dtype)
        check_alike(self._name, turn, self._shape, self._array, part)
        self._array[_index(self._how, turn, self._turns)] = part

    def array(self) -> Array:
        """The parts together, once every turn's is there."""
        assert self._array is not None, "no turn has put a part"
        return self._array


def empty(xp: Any, how: Scanned, part: TensorType) -> Array:
    """What no turns make."""
    shape = (*part.static_shape[: how.axis], 0, *part.static_shape[how.axis :])
    return xp.empty(shape, dtype=part.dtype.numpy)  # type: ignore[no-any-return]  # xp is Any


def check_alike(name: str, turn: int, shape: tuple[int, ...], first: Array, part: Array) -> None:
    """Raises ValueError where a turn makes another shape or element type than the turns before it."""
    if part.shape != shape or part.dtype != first.dtype:
        raise ValueError(
            f"{name!r} is {array_text(part)} in turn {turn}, and was of shape {list(shape)} and {first.dtype} before: "
            "parts of one value must be alike"
        )


def part_of(array: Array, how: Scanned, turn: int, turns: int) -> Array:
    """This turn's part of a scanned value, a view."""
    part: Array = array[_index(how, turn, turns)]
    return part


def _index(how: Scanned, turn: int, turns: int) -> Any:
    # The dots keep a part of no dimensions an array.
    return (*(slice(None),) * how.axis, how.place(turn, turns), ...)


def turns_of(arrays: Sequence[Array], along: Sequence[Scanned]) -> int:
    """How many parts the arrays have. Raises ValueError where they differ."""
    counts = {array.shape[how.axis] for array, how in zip(arrays, along, strict=True)}
    if len(counts) != 1:
        raise ValueError(f"what is scanned must be as long in each value, and has {sorted(counts)} parts")
    return int(counts.pop())
