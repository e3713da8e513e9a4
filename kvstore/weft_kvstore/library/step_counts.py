"""Which step a slot is at, key by key, so that its user need not say it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

MOST_ENDED: Final = 1024
"""Steps that one call may end: more is a number that cannot be meant."""


class StepCounts:
    """For each key that the slot pushes, how many steps of it have begun. `ended` steps were ended as a whole.

    Counting starts at `start`: a process that takes a slot over goes on where its forerunner was.
    """

    __slots__ = ("_counts", "_ended", "_start")

    def __init__(self, names: Iterable[str], start: int = 0) -> None:
        if start < 0:
            raise ValueError(f"step: at least 0, not {start}")
        self._start = start
        self._counts = dict.fromkeys(names, start)
        self._ended = start

    @property
    def start(self) -> int:
        """Where counting began."""
        return self._start

    def __getitem__(self, name: str) -> int:
        """Steps begun of a key: the version that has seen them. 0 for a key that the slot does not push."""
        return self._counts.get(name, 0)

    def has_begun(self, name: str) -> bool:
        """Whether a step of the key was begun here."""
        return self[name] > (self._start if name in self._counts else 0)

    def take(self, names: Sequence[str], step: int | None) -> list[int]:
        """Begins the next step of each key, or that which is given, which may be one of before: the steps' numbers."""
        steps = [self._counts[name] if step is None else step for name in names]
        for name, taken in zip(names, steps, strict=True):
            self._counts[name] = max(self._counts[name], taken + 1)
        return steps

    def give_back(self, names: Sequence[str], taken: Sequence[int], befores: Sequence[int]) -> None:
        """Steps that were taken when the counts were `befores` have not begun; where a later one has, they stay."""
        for name, step, before in zip(names, taken, befores, strict=True):
            if self._counts[name] == step + 1 and before <= step:
                self._counts[name] = before

    def last(self, step: int | None) -> int:
        """The last step that `end` would end."""
        return max(max(self._counts.values(), default=0) - 1, self._ended) if step is None else step

    def end(self, step: int | None) -> list[tuple[int, list[str]]]:
        """Ends all steps up to `step`: the steps that were not ended before, each with the keys not pushed in it.

        Without a number it is the last step that was begun, or where none was begun the next one. Raises ValueError.
        """
        last = self.last(step)
        if not self._ended <= last < self._ended + MOST_ENDED:
            raise ValueError(f"step {last}: the next to end is step {self._ended}")
        found = []
        for one in range(self._ended, last + 1):
            nothing = [name for name, count in self._counts.items() if count <= one]
            self._counts.update(dict.fromkeys(nothing, one + 1))
            found.append((one, nothing))
        self._ended = last + 1
        return found
