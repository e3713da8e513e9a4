"""Who is served next, and what is taken in meanwhile: slots for what runs at the same time, and a limit on bodies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from weft_server.refusals import CallerLeftError, FullError

HasLeft = Callable[[], Awaitable[bool]]
"""Whether the caller has hung up."""


@dataclass(eq=False, slots=True)
class _Caller:
    has_left: HasLeft
    user: str
    low_priority: bool
    admitted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class FairQueue:
    """`slots` callers run at the same time, and at most `most` wait. Belongs to one event loop.

    A user has all slots but one, so that slow requests of one leave a slot to others; who was served least is next.
    """

    def __init__(self, slots: int, most: int, noun: str = "check") -> None:
        self._noun = noun
        self._free = slots
        self._of_one = max(1, slots - 1)
        self._most = most
        self._running: Counter[str] = Counter()
        self._served: Counter[str] = Counter()
        """Slots that each user has had since somebody last waited."""
        self._waiting: list[_Caller] = []
        """In the order of arrival."""

    @asynccontextmanager
    async def slot(self, has_left: HasLeft, *, user: str = "", low_priority: bool = False) -> AsyncIterator[None]:
        """Held within the block. `low_priority`: only when no other waits. Raises FullError, CallerLeftError."""
        await self._wait(_Caller(has_left, user, low_priority))
        try:
            if await has_left():
                raise CallerLeftError
            yield
        finally:
            self._release(user)

    async def drop_disconnected(self) -> None:
        """Callers that have left make room."""
        for caller in list(self._waiting):
            if await caller.has_left() and caller in self._waiting:
                self._waiting.remove(caller)
                if not caller.admitted.done():
                    caller.admitted.set_exception(CallerLeftError())

    async def _wait(self, caller: _Caller) -> None:
        if self._can_run(caller):
            self._admit(caller)
            return
        if len(self._waiting) >= self._most:
            await self.drop_disconnected()
        if len(self._waiting) >= self._most:
            self._make_room(caller.user)
        self._waiting.append(caller)
        self._dispatch()  # a slot may have become free meanwhile
        try:
            await caller.admitted
        except BaseException:
            admitted = caller.admitted
            if caller in self._waiting:
                self._waiting.remove(caller)
            elif admitted.done() and not admitted.cancelled() and admitted.exception() is None:
                self._release(caller.user)  # the slot came as the caller was cancelled
            raise

    def _can_run(self, caller: _Caller) -> bool:
        return self._free > 0 and self._running[caller.user] < self._of_one

    def _admit(self, caller: _Caller) -> None:
        self._free -= 1
        self._running[caller.user] += 1
        self._served[caller.user] += 1

    def _release(self, user: str) -> None:
        self._free += 1
        self._running[user] -= 1
        self._dispatch()

    def _dispatch(self) -> None:
        while ready := [each for each in self._waiting if self._can_run(each)]:
            # The first of the smallest ones, which came first.
            caller = min(ready, key=lambda each: (each.low_priority, self._running[each.user], self._served[each.user]))
            self._waiting.remove(caller)
            if not caller.admitted.done():
                self._admit(caller)
                caller.admitted.set_result(None)
        if not self._waiting:
            self._served.clear()
            self._running += Counter()  # forgets those who hold none

    def _make_room(self, user: str) -> None:
        """The newest caller of the user who has most in the queue goes, if that is more than `user` would have."""
        waiting = Counter(each.user for each in self._waiting)
        largest, count = waiting.most_common(1)[0]
        if count <= waiting[user] + 1:
            raise FullError(self._noun, self._most)
        newest = next(each for each in reversed(self._waiting) if each.user == largest)
        self._waiting.remove(newest)
        if not newest.admitted.done():
            newest.admitted.set_exception(FullError(self._noun, self._most))


class BodyLimit:
    """Bodies that arrive, wait and are worked on: so many, of so many bytes together. Belongs to one event loop.

    One user's take at most half of the bytes, and leave room for one body of another's.
    """

    def __init__(self, noun: str, most_bytes: int, *, most: int | None = None) -> None:
        self._noun = noun
        self._most = most
        self._most_bytes = most_bytes
        self._held: Counter[str] = Counter()
        self._held_bytes: Counter[str] = Counter()

    @contextmanager
    def reserve(self, nbytes: int, user: str) -> Iterator[None]:
        """Held within the block, for a body of at most so many bytes. Raises FullError.

        One that is alone, or its user's only one while others leave room, has a bound of its own.
        """
        if (count := self._too_many(user)) is not None:
            raise FullError(self._noun, count)
        if (held := self._in_the_way(nbytes, user)) is not None:
            raise FullError(self._noun, held, unit="bytes of ")
        self._held[user] += 1
        self._held_bytes[user] += nbytes
        try:
            yield
        finally:
            for each, count in ((self._held, 1), (self._held_bytes, nbytes)):
                each[user] -= count
                if not each[user]:
                    del each[user]

    def has_room(self, nbytes: int, user: str) -> bool:
        """Whether such a body would be taken."""
        return self._too_many(user) is None and self._in_the_way(nbytes, user) is None

    def _too_many(self, user: str) -> int | None:
        """How many there are, where one more would be too many."""
        if self._most is None:
            return None
        for held, most in ((self._held.total(), self._most), (self._held[user], max(1, self._most - 1))):
            if held >= most:
                return held
        return None

    def _in_the_way(self, nbytes: int, user: str) -> int | None:
        """Bytes that are too many beside such a body."""
        for held, most in (
            (self._held_bytes.total(), self._most_bytes),
            (self._held_bytes[user], self._most_bytes // 2),
        ):
            if held and held + nbytes > most:
                return held
        return None
