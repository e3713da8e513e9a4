"""What became of a slot's pushes, key by key: whether a step has to be pushed again. Futures are only looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from weft_kvstore.errors import StoreLostError, StoreTimeoutError
from weft_kvstore.library.step_counts import StepCounts

MOST_FAILED: Final = 64
"""Failed steps of a key that are remembered, the earliest: who goes on after so many does not look at them."""


@dataclass(slots=True)
class PushedStep:
    """A step of a key that has begun when the count was `before`."""

    step: int
    before: int
    error: BaseException | None = None
    is_back: bool = False
    """Whether it failed and does not count: the key's next push is this step, or one before it."""

    @property
    def is_refused(self) -> bool:
        """Whether it is certain that the shards have not all of it. Where they were silent, they may."""
        return self.error is not None and not isinstance(self.error, StoreTimeoutError | StoreLostError)


class PushLog:
    """Of each key the pushes that have not ended, and the steps whose push failed, until they are pushed again.

    Failures are found when somebody asks, so who has seen a future fail finds the count as it is then.
    """

    def __init__(self, counts: StepCounts) -> None:
        self._counts = counts
        self._open: dict[str, list[tuple[PushedStep, Future[Any]]]] = {}
        self._failed: dict[str, dict[int, PushedStep]] = {}

    def take(self, names: Sequence[str], step: int | None) -> list[PushedStep]:
        """Begins the next step of each key, or that which is given."""
        befores = [self._counts[name] for name in names]
        steps = self._counts.take(names, step)
        for name, taken in zip(names, steps, strict=True):
            failed = self._failed.get(name)
            if failed:
                self._failed[name] = {one: old for one, old in failed.items() if one != taken and not old.is_back}
        return [PushedStep(*one) for one in zip(steps, befores, strict=True)]

    def give_back(self, names: Sequence[str], steps: Sequence[PushedStep]) -> None:
        """Nothing of them has left."""
        for name, one in zip(names, steps, strict=True):
            self._counts.give_back(name, one.step, one.before)

    def add(self, names: Sequence[str], steps: Sequence[PushedStep], pushed: Future[Any]) -> None:
        """They are under way."""
        for name, one in zip(names, steps, strict=True):
            self._open.setdefault(name, []).append((one, pushed))

    def settle(self, names: Iterable[str]) -> None:
        """Looks at what has ended. A refused push that was the last one begun does not count."""
        for name in names:
            under_way = self._open.get(name)
            if under_way:
                self._open[name] = [one for one in under_way if not self._has_ended(name, *one)]

    def waiting(self, name: str, version: int) -> list[Future[Any]]:
        """Pushes under way without which there is no such version."""
        return [pushed for one, pushed in self._open.get(name, ()) if one.step < version]

    def failed(self, name: str, version: int | None = None) -> PushedStep | None:
        """The earliest failed step without which there is no such version; with None, no version of what was pushed."""
        failed = self._failed.get(name)
        if not failed:
            return None
        last = self._counts[name] if version is None else version
        found = [one for one in failed.values() if one.step < last or (version is None and one.is_back)]
        return min(found, key=lambda one: one.step, default=None)

    def _has_ended(self, name: str, one: PushedStep, pushed: Future[Any]) -> bool:
        if not pushed.done():
            return False
        one.error = pushed.exception()
        failed = self._failed.setdefault(name, {})
        if one.error is None:
            failed.pop(one.step, None)
        elif len(failed) < MOST_FAILED or self._counts[name] == one.step + 1:
            failed[one.step] = one
            # The latest first: each makes the one before it the last one begun.
            for old in sorted(failed.values(), key=lambda each: -each.step):
                if old.is_refused and not old.is_back:
                    old.is_back = self._counts.give_back(name, old.step, old.before)
        return True
