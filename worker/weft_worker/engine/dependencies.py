"""Which work may start when. No threads, clocks or locks; one caller at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

from weft_worker.engine.errors import EngineUsageError, WorkError
from weft_worker.engine.work import Body, Failure, Variable, Work, WorkState

SHOWN_WORKS = 8
"""Unfinished works that a message lists by name; the rest are counted."""


class Dependencies:
    """Which work waits for which.

    Invariants: a variable has a writer or readers, never both; `blocked` of a work is the number of its variables'
    queues that it stands in; `unfinished` holds, in the order of pushing, exactly the work that is not done.
    """

    def __init__(self) -> None:
        self._sequences = count(1)
        self.unfinished: dict[int, Work] = {}
        self._failures: list[Failure] = []

    def push(
        self,
        reads: Iterable[Variable],
        writes: Iterable[Variable],
        *,
        name: str,
        lane: str = "",
        priority: int = 0,
        body: Body | None = None,
    ) -> tuple[Work, list[Work]]:
        """The new work, and all work that is ready now. Work without a body is done as soon as it is ready.

        Raises EngineUsageError, and changes nothing, for a variable given twice or of another engine.
        """
        work = Work(next(self._sequences), name, lane, priority, tuple(reads), tuple(writes), body)
        named = (*work.reads, *work.writes)
        if len(set(named)) != len(named):
            twice = next(variable for variable in named if named.count(variable) > 1)
            raise EngineUsageError(f"{work.name!r} names {twice} twice among its reads and writes")
        for variable in named:
            if variable.owner is not self:
                raise EngineUsageError(f"{work.name!r} names {variable}, which another engine made")
        self.unfinished[work.sequence] = work
        for variable in work.reads:
            if variable.writer is None and not variable.queue:
                variable.readers.add(work)
            else:
                variable.queue.append((work, False))
                work.blocked += 1
        for variable in work.writes:
            if variable.writer is None and not variable.readers and not variable.queue:
                variable.writer = work
            else:
                variable.queue.append((work, True))
                work.blocked += 1
        return work, self._settle([work] if work.blocked == 0 else [])

    def complete(self, work: Work, error: WorkError | None = None) -> list[Work]:
        """Marks running work as done and returns what is ready now.

        Raises EngineUsageError when it is done already; an error that comes so late is told by `raise_all_now`.
        """
        if work.state is WorkState.DONE:
            if error is not None:
                self._failures.append(Failure(work.sequence, error))
            raise EngineUsageError(f"{work.name!r} was completed twice")
        if error is not None:
            work.failure = Failure(work.sequence, error)
            self._failures.append(work.failure)
        return self._settle(self._finish(work))

    def release(self, variable: Variable) -> list[Work]:
        """Has its writer, which is running, be done with one variable that it writes; returns what is ready now."""
        variable.writer = None
        granted: list[Work] = []
        _advance(variable, granted)
        return self._settle(granted)

    def raise_now(self, failures: Iterable[Failure | None]) -> WorkError | None:
        """The earliest of `failures` that nobody was told of, the rest as its `others`; from here on all are told."""
        standing = {f.sequence: f for f in failures if f is not None and f.told_at is None}
        if not standing:
            return None
        first, *others = (standing[sequence] for sequence in sorted(standing))
        now = next(self._sequences)
        for failure in (first, *others):
            failure.told_at = now
        self._failures = [failure for failure in self._failures if failure.told_at is None]
        first.error.others = tuple(failure.error for failure in others)
        return first.error

    def raise_all_now(self) -> WorkError | None:
        """As `raise_now`, of every failure since the last one told, also of work that writes nothing."""
        return self.raise_now(self._failures)

    def blockers(self, work: Work) -> list[Work]:
        """All unfinished work that must be done before `work` can start, in the order of pushing."""
        found: dict[int, Work] = {}
        pending = [work]
        while pending:
            for ahead in _directly_ahead(pending.pop()):
                if ahead.sequence not in found:
                    found[ahead.sequence] = ahead
                    pending.append(ahead)
        return [found[sequence] for sequence in sorted(found)]

    def _settle(self, granted: list[Work]) -> list[Work]:
        """Of the work whose variables are all granted: skips what inherits a failure, ends what has no body."""
        ready: list[Work] = []
        while granted:
            work = granted.pop(0)
            work.failure = _inherited(work)
            if work.failure is not None or work.body is None:
                granted += self._finish(work)
            else:
                work.state = WorkState.READY
                ready.append(work)
        return ready

    def _finish(self, work: Work) -> list[Work]:
        """Releases the work's variables and returns the work whose last variable was among them."""
        work.state = WorkState.DONE
        work.body = None
        del self.unfinished[work.sequence]
        granted: list[Work] = []
        for variable in work.writes:
            if variable.writer is not work:
                continue  # released before
            if work.failure is not None:
                variable.failure = work.failure
            variable.writer = None
            if variable.queue:
                _advance(variable, granted)
        for variable in work.reads:
            variable.readers.discard(work)
            if variable.queue:
                _advance(variable, granted)
        return granted


def listing(works: Sequence[Work]) -> str:
    """The works' names and states, for messages."""
    shown = ", ".join(f"{work.name!r} ({work.state})" for work in works[:SHOWN_WORKS])
    more = len(works) - SHOWN_WORKS
    return f"{shown} and {more} more" if more > 0 else shown


def _advance(variable: Variable, granted: list[Work]) -> None:
    """Grants the variable to the head of its queue as far as that is possible."""
    while variable.queue and variable.writer is None:
        work, writes = variable.queue[0]
        if writes and variable.readers:
            return
        variable.queue.popleft()
        if writes:
            variable.writer = work
        else:
            variable.readers.add(work)
        work.blocked -= 1
        if work.blocked == 0:
            granted.append(work)


def _inherited(work: Work) -> Failure | None:
    """The earliest failure on the variables that the work names, or None."""
    found: Failure | None = None
    for variable in (*work.reads, *work.writes):
        failure = variable.failure
        if failure is not None and failure.concerns(work) and (found is None or failure.sequence < found.sequence):
            found = failure
    return found


def _directly_ahead(work: Work) -> list[Work]:
    """Work that holds, or stands earlier in the queue of, one of the work's variables."""
    found: list[Work] = []
    for variable in (*work.reads, *work.writes):
        if variable.writer is work or work in variable.readers:
            continue
        found += variable.readers
        found += [] if variable.writer is None else [variable.writer]
        for queued, _ in variable.queue:
            if queued is work:
                break
            found.append(queued)
    return found
