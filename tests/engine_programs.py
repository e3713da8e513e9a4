"""Random programs for engines, and what they must give: an interpreter that runs them one after the other."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import strategies as st

from weft_worker.engine.engine import Engine
from weft_worker.engine.errors import WorkError
from weft_worker.engine.work import OnComplete

VARIABLES = 5
LANES = {"compute": 2, "io": 1}
WAIT_S = 60.0


class DeliberateError(Exception):
    """What a program's failing work raises."""


@dataclass(frozen=True)
class Operation:
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    priority: int = 0
    asynchronous: bool = False
    fails: bool = False


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    named = draw(st.lists(st.integers(0, VARIABLES - 1), max_size=4, unique=True))
    cut = draw(st.integers(0, len(named)))
    return Operation(
        tuple(named[:cut]),
        tuple(named[cut:]),
        priority=draw(st.integers(0, 3)),
        asynchronous=draw(st.booleans()),
        fails=draw(st.integers(0, 9)) == 0,
    )


programs = st.lists(operations(), max_size=25)


def value_of(place: int, seen: tuple[int, ...], before: int) -> int:
    """What operation `place` writes over `before` when it has read `seen`: any order but the right one shows."""
    return hash((place, seen, before))


def interpreted(program: list[Operation]) -> tuple[list[int], list[int | None], int | None]:
    """(values, the failed operation on each variable, the first that failed), by running one after the other."""
    values = list(range(VARIABLES))
    failed: list[int | None] = [None] * VARIABLES
    first: int | None = None
    for place, operation in enumerate(program):
        inherited = [failed[v] for v in (*operation.reads, *operation.writes)]
        causes = [cause for cause in inherited if cause is not None]
        cause = min(causes) if causes else place if operation.fails else None
        if cause is not None:
            first = cause if first is None else min(first, cause)
            for v in operation.writes:
                failed[v] = cause
            continue
        seen = tuple(values[v] for v in operation.reads)
        for v in operation.writes:
            values[v] = value_of(place, seen, values[v])
    return values, failed, first


class Execution:
    """Pushes a program to an engine and collects what came of it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.values = list(range(VARIABLES))
        self.variables = [engine.variable(f"v{number}") for number in range(VARIABLES)]

    def push(self, program: list[Operation]) -> None:
        for place, operation in enumerate(program):
            reads = [self.variables[v] for v in operation.reads]
            writes = [self.variables[v] for v in operation.writes]
            options = {"name": f"op{place}", "priority": operation.priority}
            self._push_one(place, operation, reads, writes, options)

    def failures(self) -> Mapping[int, str]:
        """The name of the failed work that each variable's wait raises; asked of the first that has one."""
        found: dict[int, str] = {}
        for number, variable in enumerate(self.variables):
            try:
                self.engine.wait([variable], WAIT_S)
            except WorkError as error:
                found[number] = error.name
        return found

    def _push_one(self, place, operation, reads, writes, options) -> None:  # type: ignore[no-untyped-def]
        def compute() -> None:
            if operation.fails:
                raise DeliberateError(f"op{place}")
            seen = tuple(self.values[v] for v in operation.reads)
            for v in operation.writes:
                self.values[v] = value_of(place, seen, self.values[v])

        def complete(on_complete: OnComplete) -> None:
            try:
                compute()
            except DeliberateError as error:
                on_complete(error)
            else:
                on_complete()

        def start(on_complete: OnComplete) -> None:
            threading.Thread(target=complete, args=(on_complete,)).start()

        if operation.asynchronous:
            self.engine.push_async(start, reads, writes, lane="io", **options)
        else:
            self.engine.push(compute, reads, writes, lane="compute", **options)
