"""Gradients that are in and not merged, and which of them is added next. Pure."""

from __future__ import annotations

from typing import Protocol

from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.ranges import Ranges
from weft_kvstore.arrays.shelf import Laid, Shelf


class MergeOrder(Protocol):
    """Elements by contributing slot (its number) and step. `bounds` of a lot are those of its shelves."""

    def put(self, place: int, step: int, laid: Laid) -> None: ...

    def is_next(self, place: int, step: int, merged: int) -> bool:
        """Whether what comes of a slot is added at once where `merged` slots are merged in that step."""

    def holds(self, step: int) -> bool:
        """Whether anything of a step may be added now that the step before it is applied."""

    def has_all(self, step: int, merged: int, first: int, stop: int) -> bool:
        """Whether `next` finds something for each of these slices."""

    def next(self, step: int, merged: int, first: int, stop: int) -> list[tuple[int, Laid]]:
        """Takes out what is to be added next at these slices, of which `merged` slots are merged in that step."""

    def forget(self, place: int) -> None:
        """What a slot has here never came."""


class SlotOrder:
    """The slots one after the other, so that a sum is the same bits for any order of arrival."""

    def __init__(self, bounds: Array) -> None:
        self._bounds = bounds
        self._shelves: dict[tuple[int, int], Shelf] = {}

    def put(self, place: int, step: int, laid: Laid) -> None:
        shelf = self._shelves.get((place, step))
        if shelf is None:
            shelf = self._shelves[place, step] = Shelf(self._bounds)
        shelf.put(laid)

    def is_next(self, place: int, step: int, merged: int) -> bool:
        return place == merged

    def holds(self, step: int) -> bool:
        return (0, step) in self._shelves

    def has_all(self, step: int, merged: int, first: int, stop: int) -> bool:
        return (merged, step) in self._shelves and len(self._shelves[merged, step]) == stop - first

    def next(self, step: int, merged: int, first: int, stop: int) -> list[tuple[int, Laid]]:
        shelf = self._shelves.get((merged, step))
        if shelf is None:
            return []
        found = shelf.take(first, stop)
        if not shelf:
            del self._shelves[merged, step]
        return [(merged, laid) for laid in found]

    def forget(self, place: int) -> None:
        for key in [key for key in self._shelves if key[0] == place]:
            del self._shelves[key]


class ArrivalOrder:
    """In the order in which they came. Invariant: no shelf is empty."""

    def __init__(self, bounds: Array) -> None:
        self._bounds = bounds
        self._arrived: dict[int, list[tuple[int, Shelf]]] = {}

    def put(self, place: int, step: int, laid: Laid) -> None:
        shelf = Shelf(self._bounds)
        shelf.put(laid)
        self._arrived.setdefault(step, []).append((place, shelf))

    def is_next(self, place: int, step: int, merged: int) -> bool:
        return step not in self._arrived

    def holds(self, step: int) -> bool:
        return step in self._arrived

    def has_all(self, step: int, merged: int, first: int, stop: int) -> bool:
        return sum(len(shelf) for _, shelf in self._arrived.get(step, ())) >= stop - first

    def next(self, step: int, merged: int, first: int, stop: int) -> list[tuple[int, Laid]]:
        found: list[tuple[int, Laid]] = []
        left = Ranges()
        left.add(first, stop)
        for place, shelf in self._arrived.get(step, ()):
            taken = [laid for low, high in list(left) for laid in shelf.take(low, high)]
            for laid in taken:  # Of each slice what came first; others may have another first one.
                left.remove(laid.first, laid.stop)
                found.append((place, laid))
            if not left:
                break
        if found:
            self._tidy(step)
        return found

    def forget(self, place: int) -> None:
        for step in list(self._arrived):
            self._arrived[step] = [one for one in self._arrived[step] if one[0] != place]
            self._tidy(step)

    def _tidy(self, step: int) -> None:
        self._arrived[step] = [one for one in self._arrived[step] if one[1]]
        if not self._arrived[step]:
            del self._arrived[step]
