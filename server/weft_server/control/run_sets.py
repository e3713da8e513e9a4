"""Parameters that are to be set while a job runs: asked for, told to the keeper, done or given up. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from weft.api.agent import SetDone, SetOrder
from weft.api.event import LogLine
from weft_server.control.memory import SET, Parts, SetMemory, under
from weft_server.data_check import listed
from weft_server.plan import Given
from weft_server.refusals import FullError

MOST_SETS = 16
"""Of one job at a time: each is a file as large as its parameters."""


class RunSets:
    """The sets of one job that are not done, in order of their numbers. They are written down in `parts`."""

    def __init__(self, parts: Parts, newest: int, written: Mapping[str, str]) -> None:
        self.newest = newest
        """The newest set's number."""
        self._parts = parts
        self._open: dict[int, Given] = {}
        kept = [SetMemory.model_validate_json(document) for _, document in under(written, SET)]
        for each in sorted(kept, key=lambda memory: memory.number):
            self._put(each.number, each.given)

    def check_room(self) -> None:
        """Raises FullError when as many are open as a job may have."""
        if len(self._open) >= MOST_SETS:
            raise FullError("set", MOST_SETS)

    def ask(self, given: Given) -> int:
        """A new set's number. Raises FullError."""
        self.check_room()
        self.newest += 1
        self._put(self.newest, given)
        return self.newest

    @property
    def under_way(self) -> str | None:
        """What to say of a job whose parameters are being set; None where none are."""
        sets = [f"set {number} of {listed(given.names)}" for number, given in self._open.items()]
        return f"parameters are being set: {'; '.join(sets)}" if sets else None

    def get(self, number: int) -> Given | None:
        """The values; None where they are done or were given up."""
        return self._open.get(number)

    def end(self, number: int) -> Given | None:
        """The set is done or not wanted any more: what it was; None where it was not open."""
        self._parts.drop(f"{SET}{number}")
        return self._open.pop(number, None)

    def orders(self, lease: str) -> list[SetOrder]:
        """As the keeper's orders hold them."""
        return [SetOrder(allocation=lease, number=number) for number in self._open]

    def _put(self, number: int, given: Given) -> None:
        self._open[number] = given
        memory = SetMemory(number=number, given=given)
        self._parts.put(f"{SET}{number}", memory, memory.model_dump_json)


def outcome(done: SetDone, given: Given) -> LogLine:
    """A line of the job's log."""
    what = listed(given.names)
    if done.error is not None:
        return LogLine(level="warning", source="server", message=f"{what} could not be set: {done.error}")
    were = "was" if len(given.names) == 1 else "were"
    message = f"{what} {were} set; the new values hold from step {done.step} on"
    return LogLine(level="info", source="server", message=message)
