"""What happens to the keys that a worker updates itself: who waits for which version, and until when. Pure.

It knows versions and numbers alone; values, rules and futures are those of `weft_worker.local_update`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from weft_kvstore.errors import StoreError, StoreTimeoutError


@dataclass(frozen=True, slots=True)
class Begin:
    """The key's first value is to be asked for; `reached` or `failed` will tell of it."""

    key: str


@dataclass(frozen=True, slots=True)
class Give:
    """What the number waits for is there, and is so until the next event."""

    number: int


@dataclass(frozen=True, slots=True)
class End:
    """What the number waits for will not come."""

    number: int
    error: StoreError


Instruction = Begin | Give | End


@dataclass(slots=True)
class _Wait:
    """For `version` of the keys that are `missing`; one that was there once need not be there still."""

    version: int
    missing: dict[str, None]
    due_at: float

    def __str__(self) -> str:
        return f"version {self.version} of key {', '.join(map(repr, self.missing))}, which this worker updates"


class VersionWaits:
    """Times are seconds of any one clock. A key has no version before its first value is there; it never goes back."""

    def __init__(self, keys: Iterable[str], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._versions: dict[str, int | None] = dict.fromkeys(keys)
        self._failed: dict[str, StoreError] = {}
        self._begun: set[str] = set()
        self._open: dict[int, _Wait] = {}
        """In the order in which they began, and so in that of their deadlines."""
        self._waiting: dict[str, list[int]] = {key: [] for key in self._versions}

    def version(self, key: str) -> int | None:
        """How many updates the key has seen."""
        return self._versions[key]

    def begin_at(self, key: str, version: int) -> None:
        """The key is at that version, and needs no first value."""
        self._versions[key] = version
        self._begun.add(key)

    def want(self, number: int, keys: Iterable[str], version: int, now: float) -> list[Instruction]:
        """Somebody waits until each of the keys has been at that version. `number` is new."""
        self._open[number] = _Wait(version, dict.fromkeys(keys), now + self._timeout_s)
        return self._look(number)

    def misfit(self, key: str, step: int) -> StoreError | None:
        """Why the merged gradient of a step is not the one that the key waits for; None where it is."""
        if key in self._failed:
            return self._failed[key]
        at = self._versions[key]
        return None if at == step else StoreError(f"key {key!r}, step {step}: the key is at version {at}")

    def reached(self, key: str, version: int) -> list[Instruction]:
        """The key is at that version now: 0 with its first value, one more with each update."""
        self._versions[key] = version
        return self._look_again(key)

    def failed(self, key: str, error: StoreError) -> list[Instruction]:
        """The key will see no further version; the first error is told."""
        self._failed.setdefault(key, error)
        return self._look_again(key)

    def tick(self, now: float) -> list[Instruction]:
        """Ends what has waited too long."""
        late = [number for number, wait in self._open.items() if wait.due_at <= now]
        return [End(number, self._late(self._open.pop(number))) for number in late]

    def due(self) -> float:
        """When `tick` has something; infinity where nobody waits."""
        return next((wait.due_at for wait in self._open.values()), math.inf)

    def _late(self, wait: _Wait) -> StoreError:
        at = ", ".join(f"{key!r} at version {self._versions[key]}" for key in wait.missing)
        return StoreTimeoutError(f"{wait} took over {self._timeout_s:g} s: it has {at}")

    def _look_again(self, key: str) -> list[Instruction]:
        waiting, self._waiting[key] = self._waiting[key], []
        return [instruction for number in waiting if number in self._open for instruction in self._look(number)]

    def _look(self, number: int) -> list[Instruction]:
        wait = self._open[number]
        asked: list[Instruction] = []
        for key in tuple(wait.missing):
            at = self._versions[key]
            if key in self._failed:
                return [*asked, self._end(number, self._failed[key])]
            if at is not None and at > wait.version:
                return [*asked, self._end(number, StoreError(f"{wait}: key {key!r} is at version {at} already"))]
            if at == wait.version:
                del wait.missing[key]
                continue
            if number not in self._waiting[key]:
                self._waiting[key].append(number)
            if key not in self._begun:
                self._begun.add(key)
                asked.append(Begin(key))
        if wait.missing:
            return asked
        del self._open[number]
        return [*asked, Give(number)]

    def _end(self, number: int, error: StoreError) -> End:
        del self._open[number]
        return End(number, error)
