"""The engine's records: variables, work, failures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from weft_worker.engine.errors import WorkError


class OnComplete(Protocol):
    """Ends asynchronous work, from any thread, exactly once; with an error the work has failed."""

    def __call__(self, error: BaseException | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Body:
    """What a piece of work does: `run` is done when it returns, `start` when its callback is called."""

    run: Callable[[], None] | None = None
    start: Callable[[OnComplete], None] | None = None


class WorkState(StrEnum):
    WAITING = "waiting"
    """Some variable is not free yet."""
    READY = "ready"
    """All variables are held; a thread of the lane takes it by priority."""
    RUNNING = "running"
    """Begun; asynchronous work stays here until it is completed."""
    DONE = "done"
    """Run, failed or skipped; holds nothing any more."""


@dataclass(slots=True)
class Failure:
    """An error and the place of the work that failed.

    Once a wait has told it, at place `told_at` in the order of pushing, work pushed from there on does not know it.
    """

    sequence: int
    error: WorkError
    told_at: int | None = None

    def concerns(self, work: Work) -> bool:
        """Whether `work` inherits it."""
        return self.told_at is None or work.sequence < self.told_at


@dataclass(eq=False, slots=True)
class Work:
    """A piece of work. `sequence` is its place in the order of pushing; `blocked` counts variables not granted yet."""

    sequence: int
    name: str
    lane: str
    priority: int
    reads: tuple[Variable, ...]
    writes: tuple[Variable, ...]
    body: Body | None
    state: WorkState = WorkState.WAITING
    blocked: int = 0
    failure: Failure | None = None
    """Its own, or the one because of which it was skipped."""

    def __lt__(self, other: Work) -> bool:
        return (self.priority, self.sequence) < (other.priority, other.sequence)


@dataclass(eq=False, slots=True)
class Variable:
    """What work reads or writes: any number of readers or one writer, in the order of pushing.

    Made by an engine and used with that one alone. Its fields belong to the engine: `writer` and `readers` hold it
    now, `queue` is what comes after them (work, whether it writes), `failure` is what its last writer left behind.
    """

    name: str
    owner: object
    writer: Work | None = None
    readers: set[Work] = field(default_factory=set)
    queue: deque[tuple[Work, bool]] = field(default_factory=deque)
    failure: Failure | None = None

    @property
    def standing(self) -> Failure | None:
        """The failure on it that nobody has been told of, or None."""
        return self.failure if self.failure is not None and self.failure.told_at is None else None

    def __repr__(self) -> str:
        return f"Variable({self.name!r})"
