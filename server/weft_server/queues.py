"""What callers share: slots for what runs at the same time, who has the next one, and limits on what each may hold."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from weft_server.refusals import CallerLeftError, FullError
from weft_server.users import Party

HasLeft = Callable[[], Awaitable[bool]]
"""Whether the caller has hung up."""


class Shares:
    """What callers hold of something: all together at most `most`, a project `of_project` and a user `of_user`.

    Whoever holds nothing yet may take more than that: a single body has a bound of its own.
    """

    def __init__(self, most: int, *, of_project: int, of_user: int) -> None:
        self._most = (most, of_project, of_user)
        self._held: Counter[tuple[str, ...]] = Counter()

    def too_many(self, amount: int, party: Party) -> tuple[int, str] | None:
        """(what is held already, by whom in words), where so much more is too much."""
        for holder, most in zip(_holders(party), self._most, strict=True):
            held = self._held[holder]
            if held and held + amount > most:
                return held, ("", f"project {party.project}", party.user)[len(holder)]
        return None

    def add(self, amount: int, party: Party) -> None:
        """Less, where it is negative."""
        for holder in _holders(party):
            self._held[holder] += amount
            if not self._held[holder]:
                del self._held[holder]

    def of(self, party: Party) -> tuple[int, int]:
        """What the project and the user hold."""
        _, project, user = _holders(party)
        return self._held[project], self._held[user]


def _holders(party: Party) -> tuple[tuple[str, ...], ...]:
    """All callers, those of the project, and the user."""
    return (), (party.project,), (party.project, party.user)


@dataclass(eq=False, slots=True)
class _Caller:
    has_left: HasLeft
    party: Party
    low_priority: bool
    admitted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class FairQueue:
    """`slots` callers run at the same time, and at most `most` wait. Belongs to one event loop.

    Slow requests of one project leave a slot to others, and those of one user another one to its project. The project
    that was served least is next, and in it the user.
    """

    def __init__(self, slots: int, most: int, noun: str = "check") -> None:
        self._noun = noun
        self._most = most
        self._running = Shares(slots, of_project=max(1, slots - 1), of_user=max(1, slots - 2))
        self._served = Shares(0, of_project=0, of_user=0)
        """Slots that each has had since somebody last waited."""
        self._waiting: list[_Caller] = []
        """In the order of arrival."""

    @asynccontextmanager
    async def slot(self, has_left: HasLeft, party: Party, *, low_priority: bool = False) -> AsyncIterator[None]:
        """Held within the block. `low_priority`: only when no other waits. Raises FullError, CallerLeftError."""
        await self._wait(_Caller(has_left, party, low_priority))
        try:
            if await has_left():
                raise CallerLeftError
            yield
        finally:
            self._release(party)

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
            self._make_room(caller.party)
        self._waiting.append(caller)
        self._dispatch()  # a slot may have become free meanwhile
        try:
            await caller.admitted
        except BaseException:
            admitted = caller.admitted
            if caller in self._waiting:
                self._waiting.remove(caller)
            elif admitted.done() and not admitted.cancelled() and admitted.exception() is None:
                self._release(caller.party)  # the slot came as the caller was cancelled
            raise

    def _can_run(self, caller: _Caller) -> bool:
        return self._running.too_many(1, caller.party) is None

    def _admit(self, caller: _Caller) -> None:
        self._running.add(1, caller.party)
        self._served.add(1, caller.party)

    def _release(self, party: Party) -> None:
        self._running.add(-1, party)
        self._dispatch()

    def _dispatch(self) -> None:
        while ready := [each for each in self._waiting if self._can_run(each)]:
            caller = min(ready, key=self._turn)  # the first of the smallest ones, which came first
            self._waiting.remove(caller)
            if not caller.admitted.done():
                self._admit(caller)
                caller.admitted.set_result(None)
        if not self._waiting:
            self._served = Shares(0, of_project=0, of_user=0)

    def _turn(self, caller: _Caller) -> tuple[int, ...]:
        of_project, of_user = zip(self._running.of(caller.party), self._served.of(caller.party), strict=True)
        return (caller.low_priority, *of_project, *of_user)

    def _make_room(self, party: Party) -> None:
        """The newest caller goes of the user who has most in the queue, in the project that has most, or else in the
        caller's own. Raises FullError where `party` would have as many then."""
        projects = Counter(each.party.project for each in self._waiting)
        largest, count = projects.most_common(1)[0]
        is_shared = count <= projects[party.project] + 1
        users = Counter(
            each.party for each in self._waiting if each.party.project == (party.project if is_shared else largest)
        )
        if is_shared and max(users.values(), default=0) <= users[party] + 1:
            raise FullError(self._noun, self._most)
        user = max(users, key=users.__getitem__)
        newest = next(each for each in reversed(self._waiting) if each.party == user)
        self._waiting.remove(newest)
        if not newest.admitted.done():
            newest.admitted.set_exception(FullError(self._noun, self._most))


class BodyLimit:
    """Bodies that arrive, wait and are worked on: so many, of so many bytes together. Belongs to one event loop.

    One user's take at most half of the bytes, one project's three quarters. One that is alone is always taken.
    """

    def __init__(self, noun: str, most_bytes: int, *, most: int = sys.maxsize) -> None:
        self._noun = noun
        self._bodies = Shares(most, of_project=max(1, most - 1), of_user=max(1, most - 2))
        self._bytes = Shares(most_bytes, of_project=most_bytes * 3 // 4, of_user=most_bytes // 2)

    @contextmanager
    def reserve(self, nbytes: int, party: Party) -> Iterator[None]:
        """Held within the block, for a body of at most so many bytes. Raises FullError."""
        for shares, amount, unit in ((self._bodies, 1, ""), (self._bytes, nbytes, "bytes of ")):
            if (found := shares.too_many(amount, party)) is not None:
                raise FullError(self._noun, found[0], unit=unit, of=found[1])
        self._bodies.add(1, party)
        self._bytes.add(nbytes, party)
        try:
            yield
        finally:
            self._bodies.add(-1, party)
            self._bytes.add(-nbytes, party)

    def has_room(self, nbytes: int, party: Party) -> bool:
        """Whether such a body would be taken."""
        return self._bodies.too_many(1, party) is None and self._bytes.too_many(nbytes, party) is None
