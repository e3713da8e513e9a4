"""Who checks a submitted job next, and for how long: so many at the same time, users in turn, submits before dry runs,
nobody whose caller has left, and none for ever.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from anyio import to_thread

from weft.api.problem import FieldError
from weft_server.planning.apart import Apart
from weft_server.refusals import CallerLeftError, FullError, JobRefusedError

_T = TypeVar("_T")

HasLeft = Callable[[], Awaitable[bool]]
"""Whether the caller has hung up."""

LOOK_S = 0.25
"""Between two looks at whether the caller of a check that runs is still there."""


@dataclass(eq=False, slots=True)
class _Waiting:
    has_left: HasLeft
    user: str
    behind: bool
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Turns:
    """Turns, of which `at_once` are taken at the same time, and at most `most` callers wait. Belongs to one loop.

    A user takes all of them but one, so that slow checks of one leave a turn to others; who has had fewest is next.
    """

    def __init__(self, at_once: int, most: int, noun: str = "check") -> None:
        self._noun = noun
        self._free = at_once
        self._each = max(1, at_once - 1)
        self._most = most
        self._held: Counter[str] = Counter()
        self._had: Counter[str] = Counter()
        """Turns of each user since somebody last waited."""
        self._line: list[_Waiting] = []
        """In the order of their coming."""

    @asynccontextmanager
    async def turn(self, has_left: HasLeft, *, user: str = "", behind: bool = False) -> AsyncIterator[None]:
        """Held within the block. `behind`: only when no other waits. Raises FullError, CallerLeftError."""
        await self._wait(_Waiting(has_left, user, behind))
        try:
            if await has_left():
                raise CallerLeftError
            yield
        finally:
            self._give_back(user)

    async def _wait(self, caller: _Waiting) -> None:
        if self._may_take(caller):
            self._take(caller)
            return
        if len(self._line) >= self._most:
            await self.sweep()
        if len(self._line) >= self._most:
            self._make_room(caller.user)
        self._line.append(caller)
        self._pass_on()  # a turn may have become free meanwhile
        try:
            await caller.turn
        except BaseException:
            if caller in self._line:
                self._line.remove(caller)
            elif caller.turn.done() and not caller.turn.cancelled() and caller.turn.exception() is None:
                self._give_back(caller.user)  # the turn came as the caller was cancelled
            raise

    def _may_take(self, caller: _Waiting) -> bool:
        return self._free > 0 and self._held[caller.user] < self._each

    def _take(self, caller: _Waiting) -> None:
        self._free -= 1
        self._held[caller.user] += 1
        self._had[caller.user] += 1

    def _give_back(self, user: str) -> None:
        self._free += 1
        self._held[user] -= 1
        self._pass_on()

    def _pass_on(self) -> None:
        while waiting := [each for each in self._line if self._may_take(each)]:
            # The first of the smallest ones, which came first.
            caller = min(waiting, key=lambda each: (each.behind, self._held[each.user], self._had[each.user]))
            self._line.remove(caller)
            if not caller.turn.done():
                self._take(caller)
                caller.turn.set_result(None)
        if not self._line:
            self._had.clear()
            self._held += Counter()  # forgets those who hold none

    def _make_room(self, user: str) -> None:
        """The newest caller of who has most in the line goes, if that is more than the user would have."""
        waiting = Counter(each.user for each in self._line)
        largest, count = waiting.most_common(1)[0]
        if count <= waiting[user] + 1:
            raise FullError(self._noun, self._most)
        newest = next(each for each in reversed(self._line) if each.user == largest)
        self._line.remove(newest)
        if not newest.turn.done():
            newest.turn.set_exception(FullError(self._noun, self._most))

    async def sweep(self) -> None:
        """Those that have left make room."""
        for caller in list(self._line):
            if await caller.has_left() and caller in self._line:
                self._line.remove(caller)
                if not caller.turn.done():
                    caller.turn.set_exception(CallerLeftError())


class Places:
    """Room for bodies that come, wait and are worked on: so many, of so many bytes together. Belongs to one loop."""

    def __init__(self, noun: str, most_bytes: int, *, most: int | None = None, of_one_bytes: int | None = None) -> None:
        """`of_one_bytes`: what one user's take together."""
        self._noun = noun
        self._most = most
        self._most_bytes = most_bytes
        self._of_one_bytes = most_bytes if of_one_bytes is None else of_one_bytes
        self._taken: Counter[str] = Counter()
        self._taken_bytes: Counter[str] = Counter()

    @property
    def is_full(self) -> bool:
        """Whether no body is taken, of whatever size."""
        return self._most is not None and self._taken.total() >= self._most

    @contextmanager
    def place(self, nbytes: int, user: str = "") -> Iterator[None]:
        """Held within the block, for a body of at most so many bytes. Raises FullError.

        One that is alone, or its user's only one while others leave room, has a bound of its own.
        """
        if self.is_full:
            raise FullError(self._noun, self._taken.total())
        if (taken := self._in_the_way(nbytes, user)) is not None:
            raise FullError(self._noun, taken, unit="bytes of ")
        self._taken[user] += 1
        self._taken_bytes[user] += nbytes
        try:
            yield
        finally:
            for each, count in ((self._taken, 1), (self._taken_bytes, nbytes)):
                each[user] -= count
                if not each[user]:
                    del each[user]

    def has_room(self, nbytes: int, user: str = "") -> bool:
        """Whether such a body would be taken."""
        return not self.is_full and self._in_the_way(nbytes, user) is None

    def _in_the_way(self, nbytes: int, user: str) -> int | None:
        """Bytes that are too many beside such a body."""
        for taken, most in (
            (self._taken_bytes.total(), self._most_bytes),
            (self._taken_bytes[user], self._of_one_bytes),
        ):
            if taken and taken + nbytes > most:
                return taken
        return None


async def checked(
    seconds: float, has_left: HasLeft, function: Callable[..., _T], *arguments: object, apart: Apart | None = None
) -> _T:
    """What `function` returns, run on a thread or `apart`, where it is stopped after so long, or once its caller has
    left.

    Raises JobRefusedError, CallerLeftError. The function has to change nothing but what it returns: it is stopped
    between any two steps of the interpreter.
    """
    loop = asyncio.get_running_loop()
    run, until, was_stopped = _Run(), loop.time() + seconds, False
    if apart is None:
        task = asyncio.ensure_future(to_thread.run_sync(lambda: run(function, *arguments)))
    else:
        task = asyncio.ensure_future(apart.run(function, *arguments))
    try:
        why: Exception | None = None
        while not (await asyncio.wait({task}, timeout=min(LOOK_S, max(until - loop.time(), 0))))[0]:
            if loop.time() >= until:
                detail = f"checking the job takes more than {seconds:g} s: a smaller graph is checked sooner"
                why = JobRefusedError([FieldError(pointer="/graph", detail=detail)])
            elif await has_left():
                why = CallerLeftError()
            if why is not None:
                break
    finally:
        if was_stopped := not task.done():
            if apart is None:
                run.stop()
            else:
                task.cancel()
            await asyncio.wait({task})
    if was_stopped:
        if not task.cancelled():
            task.exception()
        raise why or CallerLeftError()
    return task.result()


class _StoppedError(BaseException):
    """Raised where the thread is. No handler of errors takes it for one."""


class _Run:
    """One call of a function on a thread, which another thread may stop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self.was_stopped = False

    def __call__(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Raises RuntimeError once it was stopped."""
        try:
            with self._lock:
                if self.was_stopped:
                    raise _StoppedError
                self._thread = threading.get_ident()
            try:
                return function(*arguments)
            finally:
                with self._lock:  # here it is raised, where the function returned as it was stopped
                    self._thread = None
        except _StoppedError:
            raise RuntimeError("it was stopped") from None

    def stop(self) -> None:
        """Stops the call, if it runs. The thread raises within milliseconds, or after what it computes in C."""
        with self._lock:
            self.was_stopped = True
            if self._thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(_StoppedError)
                )
