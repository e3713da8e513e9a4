"""Values of one job's parameters: the first ones, those to be set while it runs, whether the final ones are there.

Pure. All of it is the keeper's to carry out; what any other agent asks for is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.api.agent import SetDone, SetOrder
from weft.api.event import LogLine
from weft.api.lifecycle import JobState
from weft_server.control.instructions import SetEnded
from weft_server.control.leases import Lease, Leases
from weft_server.control.memory import SET, RunState, SetMemory, under
from weft_server.planning.plan import Given
from weft_server.refusals import FullError, NotKeeperError, WrongStateError, listed

MOST_SETS = 16
"""Of one job at a time: each is a file as large as its parameters."""


class RunValues:
    """What is given to a job's parameters, and brought from them. Sets that are not done are written down one by one,
    in order of their numbers."""

    def __init__(self, state: RunState, leases: Leases, written: Mapping[str, str]) -> None:
        self._state = state
        self._memory = state.memory
        self._leases = leases
        self._ended: list[SetEnded] = []
        self._open: dict[int, Given] = {}
        kept = [SetMemory.model_validate_json(document) for _, document in under(written, SET)]
        for each in sorted(kept, key=lambda memory: memory.number):
            self._put(each.number, each.given)

    @property
    def given(self) -> Given | None:
        """First values that are not those of the graph."""
        return self._memory.given

    @property
    def given_names(self) -> list[str]:
        """Parameters that begin with values which were given."""
        return [] if self.given is None else self.given.names

    @property
    def under_way(self) -> str | None:
        """What to say of a job whose parameters are being set; None where none are."""
        sets = [f"set {number} of {listed(given.names)}" for number, given in self._open.items()]
        return f"parameters are being set: {'; '.join(sets)}" if sets else None

    def check_brought(self, lease: Lease, term: int, step: int, final: bool) -> None:
        """Whether the keeper may bring parameters of that step. Raises a RefusalError."""
        self._leases.check_keeper(lease, term, "bring")
        steps = self._state.plan.steps
        if step != steps if final else not 0 <= step <= steps:
            raise NotKeeperError(f"step {step} of {steps} has no {'final ' if final else ''}parameters")

    def first(self, lease: Lease, term: int) -> Given:
        """What the keeper sets before the first step. Raises a RefusalError."""
        self._leases.check_keeper(lease, term, "set")
        if self.given is None:
            raise NotKeeperError(f"job {self._state.job} begins with the values of its graph")
        return self.given

    def give(self, state: JobState, given: Given) -> None:
        """The first values from now on. Raises WrongStateError unless the job is pending."""
        if state is not JobState.PENDING:
            raise WrongStateError(f"job {self._state.job} {state.told}: it has its first values")
        self._memory.given = given

    def check_set(self, state: JobState) -> None:
        """Raises WrongStateError or FullError where parameters cannot be set now."""
        if state not in {JobState.STARTING, JobState.RUNNING}:
            advice = "submit a job with init_from to begin with other values"
            raise WrongStateError(f"job {self._state.job} {state.told}, so nothing can be set any more; {advice}")
        if len(self._open) >= MOST_SETS:
            raise FullError("set", MOST_SETS)

    def ask_set(self, state: JobState, given: Given) -> int:
        """The keeper is to set these values: the set's number. Raises what `check_set` raises."""
        self.check_set(state)
        self._leases.order_keeper()
        self._memory.sets += 1
        self._put(self._memory.sets, given)
        return self._memory.sets

    def open_set(self, lease: Lease, term: int, number: int) -> Given:
        """What the keeper is to set. Raises a RefusalError."""
        self._leases.check_keeper(lease, term, "set")
        given = self._open.get(number)
        if given is None:
            raise NotKeeperError(f"set {number} of job {self._state.job} is done or was given up")
        return given

    def give_up_set(self, number: int, why: str) -> Given | None:
        """Nobody waits for the set any more: what it was; None where it was not open."""
        given = self._open.get(number)
        return given if self.end_set(SetDone(number=number, step=0, error=why)) is not None else None

    def end_set(self, done: SetDone) -> LogLine | None:
        """A set is done or not wanted any more: a line of the job's log; None where it was not open."""
        self._state.parts.drop(f"{SET}{done.number}")
        given = self._open.pop(done.number, None)
        if given is None:
            return None
        self._ended.append(SetEnded(self._state.job, done, given.file))
        self._leases.order_keeper()
        what = listed(given.names)
        if done.error is not None:
            return LogLine(level="warning", source="server", message=f"{what} could not be set: {done.error}")
        were = "was" if len(given.names) == 1 else "were"
        message = f"{what} {were} set after step {done.step}"
        return LogLine(level="info", source="server", message=message)

    def orders(self, lease: Lease) -> list[SetOrder]:
        """What the agent of that lease is to set."""
        if lease is not self._leases.keeper:
            return []
        return [SetOrder(allocation=lease.id, number=number) for number in self._open]

    def drain(self) -> list[SetEnded]:
        """Sets that have ended since the last call."""
        out, self._ended = self._ended, []
        return out

    def _put(self, number: int, given: Given) -> None:
        self._open[number] = given
        memory = SetMemory(number=number, given=given)
        self._state.parts.put(f"{SET}{number}", memory, memory.model_dump_json)
