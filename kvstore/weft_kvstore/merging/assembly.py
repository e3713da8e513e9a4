"""Pushes that have come in part: a slot is in when all parts of its push have come. Pure.

What is held is what has come: a number of parts that a peer claims takes no memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from weft_kvstore.merging.steps import PushRefusedError, contradiction

P = TypeVar("P")


@dataclass(slots=True)
class _Push(Generic[P]):
    count: int
    parts: dict[int, P] = field(default_factory=dict)


class Assemblies(Generic[P]):
    """Parts by slot and step. Invariant: none of a step that the slot is in."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], _Push[P]] = {}

    def check(self, slot: int, step: int, where: str, *, count: int | None) -> None:
        """Raises PushRefusedError where parts of another count came before; no count: the slot declares nothing."""
        push = self._open.get((slot, step))
        if push is not None and count is None:
            raise PushRefusedError(f"{where}: {contradiction(before=True)}")
        if push is not None and push.count != count:
            raise PushRefusedError(f"{where}: a push of {push.count} parts before and of {count} now")

    def part(self, slot: int, step: int, index: int) -> P | None:
        """A part that has come."""
        push = self._open.get((slot, step))
        return push.parts.get(index) if push is not None else None

    def add(self, slot: int, step: int, index: int, part: P, count: int) -> list[P] | None:
        """Takes a part in, the first of its number. All parts in order, once they are complete."""
        push = self._open.setdefault((slot, step), _Push(count))
        push.parts.setdefault(index, part)
        if len(push.parts) < count:
            return None
        del self._open[slot, step]
        return [push.parts[number] for number in range(count)]

    @property
    def begun(self) -> int:
        """The first step of which no part has come, nor of a later one."""
        return max((step + 1 for _, step in self._open), default=0)

    def drop(self, slot: int) -> None:
        """Forgets what a slot has not completed."""
        for place in [one for one in self._open if one[0] == slot]:
            del self._open[place]
