"""Values of one job's parameters: the first ones, those to be set while it runs, whether the final ones are there.

Pure. All of it is the keeper's to carry out; what any other agent asks for is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.api.agent import SetDone, SetOrder
from weft.api.event import LogLine
from weft.api.lifecycle import JobState
from weft_server.control.instructions import SetEnded
from weft_server.control.lease import Lease
from weft_server.control.leases import Places
from weft_server.control.memory import Parts, RunMemory
from weft_server.control.run_sets import RunSets, outcome
from weft_server.plan import Given
from weft_server.refusals import NotKeeperError, WrongStateError


class RunValues:
    """What is given to a job's parameters, and brought from them."""

    def __init__(
        self, job: str, steps: int, places: Places, parts: Parts, *, memory: RunMemory, written: Mapping[str, str]
    ) -> None:
        self.given = memory.given
        """First values that are not those of the graph."""
        self.has_final = memory.has_final
        self.sets = RunSets(parts, memory.sets, written)
        self._job = job
        self.steps = steps
        """Of the whole run: the final values are of that many."""
        self._places = places
        self._ended: list[SetEnded] = []

    @property
    def given_names(self) -> list[str]:
        """Parameters that begin with values which were given."""
        return [] if self.given is None else self.given.names

    def check_brought(self, lease: Lease, term: int, step: int, final: bool) -> None:
        """Whether the keeper may bring parameters of that step. Raises a RefusalError."""
        self._places.check_keeper(lease, term, "bring")
        if step != self.steps if final else not 0 <= step <= self.steps:
            raise NotKeeperError(f"step {step} of {self.steps} has no {'final ' if final else ''}parameters")

    def first(self, lease: Lease, term: int) -> Given:
        """What the keeper sets before the first step. Raises a RefusalError."""
        self._places.check_keeper(lease, term, "set")
        if self.given is None:
            raise NotKeeperError(f"job {self._job} begins with the values of its graph")
        return self.given

    def give(self, state: JobState, given: Given) -> None:
        """The first values from now on. Raises WrongStateError unless the job is pending."""
        if state is not JobState.PENDING:
            raise WrongStateError(f"job {self._job} {state.told}: it has its first values")
        self.given = given

    def check_set(self, state: JobState) -> None:
        """Raises WrongStateError or FullError where parameters cannot be set now."""
        if state not in {JobState.STARTING, JobState.RUNNING}:
            advice = "submit a job with init_from to begin with other values"
            raise WrongStateError(f"job {self._job} {state.told}, so nothing can be set any more; {advice}")
        self.sets.check_room()

    def ask_set(self, state: JobState, given: Given) -> int:
        """The keeper is to set these values: the set's number. Raises what `check_set` raises."""
        self.check_set(state)
        self._places.order_keeper()
        return self.sets.ask(given)

    def open_set(self, lease: Lease, term: int, number: int) -> Given:
        """What the keeper is to set. Raises a RefusalError."""
        self._places.check_keeper(lease, term, "set")
        given = self.sets.get(number)
        if given is None:
            raise NotKeeperError(f"set {number} of job {self._job} is done or was given up")
        return given

    def give_up_set(self, number: int, why: str) -> Given | None:
        """Nobody waits for the set any more: what it was; None where it was not open."""
        given = self.sets.get(number)
        return given if self.end_set(SetDone(number=number, step=0, error=why)) is not None else None

    def end_set(self, done: SetDone) -> LogLine | None:
        """A set is done or not wanted any more: a line of the job's log; None where it was not open."""
        given = self.sets.end(done.number)
        if given is None:
            return None
        self._ended.append(SetEnded(self._job, done, given.file))
        self._places.order_keeper()
        return outcome(done, given)

    def orders(self, lease: Lease) -> list[SetOrder]:
        """What the agent of that lease is to set."""
        return self.sets.orders(lease.id) if lease is self._places.keeper else []

    def drain(self) -> list[SetEnded]:
        """Sets that have ended since the last call."""
        out, self._ended = self._ended, []
        return out
