"""What the server refuses. A refusal changes nothing.

RefusalError
+-- UnknownError         no such job, agent or allocation
+-- StaleTermError       the allocation is not held under that term any more
+-- IllegalReportError   the lifecycle knows no such event in this state
+-- NotKeeperError       parameters from an allocation that is not to bring any, or of a step that is not asked for
+-- WrongStateError      the job is in a state in which this cannot be done
+-- ValuesDeletedError   the job has succeeded, and somebody has deleted the file of its values
+-- FullError            as many jobs, agents or sets as the server holds are there
+-- NotSetError          the keeper could not set a job's parameters
+-- NotRemovedError      the place of a job's snapshots does not answer
+-- CallerLeftError      who asked has hung up before it was their turn
+-- NoProcessError       what a request needs a process for has none, or has lost it
+-- NotWrittenError      what was decided is not in the records yet: a crash would lose it

JobRefusedError          a submitted job cannot run; it has everything that is wrong with it
KeeperSilentError        the keeper did not bring or set a job's parameters in time
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.api.problem import FieldError

MOST_NAMES = 20
"""What a message lists of names; an answer's size does not grow with the graph's."""
MOST_IN_SUMMARY = 3
"""Errors that the answer's one line lists."""


class RefusalError(Exception):
    """`code` is the problem's code, fixed by the class or given with the noun that is unknown."""

    code = "refused"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UnknownError(RefusalError):
    """There is no such `noun`: a job, an agent, an allocation."""

    def __init__(self, noun: str, identifier: str) -> None:
        super().__init__(f"there is no {noun} {identifier!r}")
        self.code = f"unknown-{noun}"


class StaleTermError(RefusalError):
    code = "stale-term"


class IllegalReportError(RefusalError):
    code = "illegal-report"


class NotKeeperError(RefusalError):
    code = "not-wanted"


class WrongStateError(RefusalError):
    code = "wrong-state"


class ValuesDeletedError(RefusalError):
    """The file of a job's final values was deleted, with its folder say."""

    code = "values-deleted"

    def __init__(self, job: str) -> None:
        super().__init__(f"the values of job {job} are not on the server's disk any more: their file was deleted")


class FullError(RefusalError):
    """There are `most` of a `noun` already: jobs that have not ended, agents, sets of a job, checks that wait; or of
    their bytes.
    """

    def __init__(self, noun: str, most: int, *, unit: str = "", of: str = "") -> None:
        """`of`: whose share is full, where it is not all that this server holds."""
        full = f" of {of} already, its share of what" if of else " already, as many as"
        super().__init__(f"there are {most} {unit}{noun}s{full} this server holds; try again later")
        self.code = f"too-many-{noun}s"


class CallerLeftError(RefusalError):
    """Nobody is there to be answered."""

    code = "caller-left"

    def __init__(self) -> None:
        super().__init__("the caller has left before it was their turn")


class NoProcessError(RefusalError):
    """No process can be had for what is asked, or it was lost; the same call may come again."""

    code = "no-process"

    def __init__(self, why: str) -> None:
        super().__init__(f"the server cannot work on it now: {why}; send it again")


class NotSetError(RefusalError):
    """The keeper could not set the parameters."""

    code = "values-not-set"


class NotRemovedError(RefusalError):
    """Something of a job could not be deleted; the same call may come again."""

    code = "not-removed"


class DatabaseMovedError(RefusalError):
    """What is written now is in no file that has a name."""

    code = "records-unavailable"

    def __init__(self) -> None:
        super().__init__("the database's file was moved or replaced: put it back, or start the server again")


class NotWrittenError(RefusalError):
    """The fact was taken, and is written once the records take what comes to them; the same call may come again."""

    code = "records-unavailable"

    def __init__(self) -> None:
        super().__init__("the records refuse what is written to them; it is tried again, so try again")


class JobRefusedError(Exception):
    """The job cannot run. `errors` has at least one entry."""

    def __init__(self, errors: list[FieldError]) -> None:
        more = [f"and {len(errors) - MOST_IN_SUMMARY} more"] if len(errors) > MOST_IN_SUMMARY else []
        super().__init__("; ".join([*(error.detail for error in errors[:MOST_IN_SUMMARY]), *more]))
        self.errors = errors


class KeeperSilentError(Exception):
    """The keeper did not bring or set the parameters in time."""


def listed(names: Iterable[str]) -> str:
    """The names in quotes, the first few of them where there are many."""
    all_names = list(names)
    shown = ", ".join(map(repr, all_names[:MOST_NAMES]))
    return f"{shown} and {len(all_names) - MOST_NAMES} more" if len(all_names) > MOST_NAMES else shown
