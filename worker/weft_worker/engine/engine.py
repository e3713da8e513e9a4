"""What every engine offers. The same programs give the same results on all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from weft_worker.engine.dependencies import Dependencies
from weft_worker.engine.errors import EngineClosedError, EngineUsageError, PartError, WorkError
from weft_worker.engine.work import Body, OnComplete, Variable


class Engine(ABC):
    """Runs work once the variables that it names are free: many readers or one writer, in the order of pushing.

    Work that raises leaves its error on the variables that it writes; work that names such a variable is skipped and
    passes the error on. The error is raised once, by the first wait that meets it, and is then forgotten.
    """

    def __init__(self, lanes: Iterable[str]) -> None:
        self._lane_names = frozenset(lanes)
        self._dependencies = Dependencies()
        self._closed = False

    def variable(self, name: str) -> Variable:
        """A new variable; `name` is what messages call it."""
        return Variable(name, self._dependencies)

    def push(
        self,
        work: Callable[[], None],
        reads: Iterable[Variable] = (),
        writes: Iterable[Variable] = (),
        *,
        lane: str,
        name: str,
        priority: int = 0,
    ) -> None:
        """Runs `work` on a thread of `lane` once its variables are free; it is done when it returns.

        Within a lane, ready work starts by (priority, order of pushing), 0 the most urgent. Raises EngineUsageError
        for a variable named twice, of another engine, or an unknown lane; EngineClosedError.
        """
        self._admit(Body(run=work), reads, writes, lane=self._known(lane, name), name=name, priority=priority)

    def push_async(
        self,
        start: Callable[[OnComplete], None],
        reads: Iterable[Variable] = (),
        writes: Iterable[Variable] = (),
        *,
        lane: str,
        name: str,
        priority: int = 0,
    ) -> None:
        """As `push`, for work that only starts something: it is done when `on_complete` is called, from any thread.

        The lane's thread is free again as soon as `start` returns. Calling `on_complete` twice raises EngineUsageError.
        """
        self._admit(Body(start=start), reads, writes, lane=self._known(lane, name), name=name, priority=priority)

    @abstractmethod
    def release(self, variable: Variable) -> None:
        """Called from inside work: it has written one of its variables, and goes on. What reads it may start; what the
        work raises later is not left on it."""

    @abstractmethod
    def wait(self, variables: Iterable[Variable], timeout_s: float) -> None:
        """Returns when all work pushed so far that writes one of `variables` is done.

        Raises the WorkError on them; EngineTimeoutError, which names what is unfinished; EngineClosedError;
        EngineUsageError when called from inside work, which would wait for itself.
        """

    @abstractmethod
    def wait_all(self, timeout_s: float) -> None:
        """Returns when everything pushed so far is done. Raises as `wait`, also for work that writes nothing."""

    @abstractmethod
    def close(self, timeout_s: float = 30.0) -> None:
        """Drops what has not started, ends the threads, fails every wait with EngineClosedError. Idempotent.

        Raises EngineTimeoutError, naming the work, when a thread is still busy after `timeout_s`; EngineUsageError
        when called from inside work.
        """

    @abstractmethod
    def _admit(
        self,
        body: Body,
        reads: Iterable[Variable],
        writes: Iterable[Variable],
        *,
        lane: str,
        name: str,
        priority: int,
    ) -> None:
        """Takes work whose lane is known. Raises as `push`."""

    @abstractmethod
    def _is_inside_work(self) -> bool:
        """Whether the caller is work of this engine."""

    def _check_outside(self, call: str) -> None:
        """Work that waited would wait for itself, or for what is behind it on its lane."""
        if self._is_inside_work():
            raise EngineUsageError(f"{call} was called from inside work; push what is to follow instead")

    def _known(self, lane: str, name: str) -> str:
        if lane not in self._lane_names:
            raise EngineUsageError(f"{name!r} asks for lane {lane!r}; there are {sorted(self._lane_names)}")
        return lane

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosedError("the engine is closed")


def work_error(name: str, cause: BaseException) -> WorkError:
    """The error of work called `name` that raised `cause`."""
    said = described = None
    if isinstance(cause, PartError):
        said, name, described, cause = cause.said, cause.name, cause.described, cause.cause
    message = f"{name} failed: {type(cause).__name__}: {cause}"
    if described is not None:
        message = f"{message}; {described}"
    failed = WorkError(name, said or message)
    failed.__cause__ = cause
    return failed
