"""What the engines have in common: how work is put into words before it is admitted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from weft_worker.engine.dependencies import Dependencies
from weft_worker.engine.errors import EngineClosedError, EngineUsageError
from weft_worker.engine.work import Body, OnComplete, Variable


class EngineBase(ABC):
    """Makes variables, turns both kinds of push into one, refuses what no engine takes."""

    def __init__(self, lanes: Iterable[str]) -> None:
        self._lane_names = frozenset(lanes)
        self._mind = Dependencies()
        self._closed = False

    def variable(self, name: str) -> Variable:
        return Variable(name, self._mind)

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
        body = Body(run=work, describe=describe)
        self._admit(body, reads, writes, lane=self._known(lane, name), name=name, priority=priority)

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
        body = Body(start=start, describe=describe)
        self._admit(body, reads, writes, lane=self._known(lane, name), name=name, priority=priority)

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
        """Takes work whose lane is known. Raises as `Engine.push`."""

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
