"""Who checks a submitted job next: so many at the same time, submits before dry runs, nobody whose caller has left."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from weft_server.refusals import CallerLeftError, FullError

HasLeft = Callable[[], Awaitable[bool]]
"""Whether the caller has hung up."""


@dataclass(eq=False, slots=True)
class _Waiting:
    has_left: HasLeft
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Checks:
    """Turns, of which `at_once` are taken at the same time, and at most `most` callers wait. Belongs to one loop."""

    def __init__(self, at_once: int, most: int, noun: str = "check") -> None:
        self._noun = noun
        self._free = at_once
        self._most = most
        self._first: deque[_Waiting] = deque()
        self._behind: deque[_Waiting] = deque()

    @asynccontextmanager
    async def turn(self, has_left: HasLeft, *, behind: bool = False) -> AsyncIterator[None]:
        """Held within the block. `behind`: only when no other waits. Raises FullError, CallerLeftError."""
        await self._wait(_Waiting(has_left), behind=behind)
        try:
            if await has_left():
                raise CallerLeftError
            yield
        finally:
            self._pass_on()

    async def _wait(self, caller: _Waiting, *, behind: bool) -> None:
        if self._free:
            self._free -= 1
            return
        if len(self._first) + len(self._behind) >= self._most:
            await self.sweep()
        if len(self._first) + len(self._behind) >= self._most:
            raise FullError(self._noun, self._most)
        line = self._behind if behind else self._first
        line.append(caller)
        try:
            await caller.turn
        except BaseException:
            if caller in line:
                line.remove(caller)
            elif caller.turn.done() and not caller.turn.cancelled() and caller.turn.exception() is None:
                self._pass_on()  # the turn came as the caller was cancelled
            raise

    def _pass_on(self) -> None:
        for line in (self._first, self._behind):
            while line:
                caller = line.popleft()
                if not caller.turn.done():
                    caller.turn.set_result(None)
                    return
        self._free += 1

    async def sweep(self) -> None:
        """Those that have left make room."""
        for line in (self._first, self._behind):
            for caller in list(line):
                if await caller.has_left() and caller in line:
                    line.remove(caller)
                    if not caller.turn.done():
                        caller.turn.set_exception(CallerLeftError())
