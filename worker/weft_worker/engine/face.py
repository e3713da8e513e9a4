"""What every engine offers. The same programs give the same results on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from weft_worker.engine.errors import PartError, WorkError
from weft_worker.engine.work import Body, OnComplete, Variable


class Engine(Protocol):
    """Runs work once the variables that it names are free: many readers or one writer, in the order of pushing.

    Work that raises leaves its error on the variables that it writes; work that names such a variable is skipped and
    passes the error on. The error is raised once, by the first wait that meets it, and is then forgotten.
    """

    def variable(self, name: str) -> Variable:
        """A new variable; `name` is what messages call it."""

    def push(
        self,
        work: Callable[[], None],
        reads: Iterable[Variable] = (),
        writes: Iterable[Variable] = (),
        *,
        lane: str,
        name: str,
        priority: int = 0,
        describe: Callable[[], str] | None = None,
    ) -> None:
        """Runs `work` on a thread of `lane` once its variables are free; it is done when it returns.

        Within a lane, ready work starts by (priority, order of pushing), 0 the most urgent. Raises EngineUsageError
        for a variable named twice, of another engine, or an unknown lane; EngineClosedError.
        """

    def push_async(
        self,
        start: Callable[[OnComplete], None],
        reads: Iterable[Variable] = (),
        writes: Iterable[Variable] = (),
        *,
        lane: str,
        name: str,
        priority: int = 0,
        describe: Callable[[], str] | None = None,
    ) -> None:
        """As `push`, for work that only starts something: it is done when `on_complete` is called, from any thread.

        The lane's thread is free again as soon as `start` returns. Calling `on_complete` twice raises EngineUsageError.
        """

    def release(self, variable: Variable) -> None:
        """Called from inside work: it has written one of its variables, and goes on. What reads it may start; what the
        work raises later is not left on it."""

    def wait(self, variables: Iterable[Variable], timeout_s: float) -> None:
        """Returns when all work pushed so far that writes one of `variables` is done.

        Raises the WorkError on them; EngineTimeoutError, which names what is unfinished; EngineClosedError;
        EngineUsageError when called from inside work, which would wait for itself.
        """

    def wait_all(self, timeout_s: float) -> None:
        """Returns when everything pushed so far is done. Raises as `wait`, also for work that writes nothing."""

    def close(self, timeout_s: float = 30.0) -> None:
        """Drops what has not started, ends the threads, fails every wait with EngineClosedError. Idempotent.

        Raises EngineTimeoutError, naming the work, when a thread is still busy after `timeout_s`; EngineUsageError
        when called from inside work.
        """


def work_error(name: str, body: Body | None, cause: BaseException) -> WorkError:
    """The error of work called `name` that raised `cause`, with what the body says of its inputs."""
    said: str | None = None
    if isinstance(cause, PartError):
        said, name, described, cause = cause.said, cause.name, cause.described, cause.cause
        body = None if described is None else Body(describe=lambda: described)
    message = f"{name} failed: {type(cause).__name__}: {cause}"
    if body is not None and body.describe is not None:
        try:
            message = f"{message}; {body.describe()}"
        except Exception as error:  # noqa: BLE001  # the work's own error must not be lost to a broken description
            message = f"{message}; and it could not be described: {type(error).__name__}: {error}"
    failed = WorkError(name, said or message)
    failed.__cause__ = cause
    return failed
