"""What the engine raises.

EngineError
+-- EngineUsageError        the caller's mistake: overlapping reads and writes, a second completion, a wait inside work
+-- WorkError               a piece of work failed; raised once, by the wait that meets it
+-- EngineTimeoutError      a wait's deadline passed; the message names the work that is not finished
+-- EngineClosedError       the engine was closed before, or while waiting
"""

from __future__ import annotations


class EngineError(Exception):
    """Something about the engine failed."""


class EngineUsageError(EngineError):
    """The engine was used in a way that it refuses; nothing has changed."""


class WorkError(EngineError):
    """The work called `name` failed; `__cause__` is what it raised. `others` failed too, independently of it."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        self.others: tuple[WorkError, ...] = ()


class PartError(Exception):
    """Raised by work that has parts: the part called `name` failed of `cause`; `described` is what it had before it,
    where that says more. The WorkError is that part's. `said` is its whole message, where that is given."""

    def __init__(self, name: str, described: str | None, cause: BaseException, *, said: str | None = None) -> None:
        super().__init__(name)
        self.name, self.described, self.cause, self.said = name, described, cause, said


class EngineTimeoutError(EngineError):
    """A deadline passed before the work was finished."""


class EngineClosedError(EngineError):
    """The engine is closed; what was pushed and had not started will not run."""
