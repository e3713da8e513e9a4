"""Slots for those who ask, and limits on what they send meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pytest

from weft_server.queues import BodyLimit, FairQueue
from weft_server.refusals import CallerLeftError, FullError
from weft_server.users import Party


async def there() -> bool:
    return False


async def gone() -> bool:
    return True


def party(user: str) -> Party:
    """A user called `NAME` of a project of their own, or `NAME@PROJECT`."""
    name, _, project = user.partition("@")
    return Party(project or name, name)


class Held:
    """Callers of `checks`, who hold their slots until they are let go."""

    def __init__(self, checks: FairQueue) -> None:
        self.checks = checks
        self.began: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    async def come(
        self,
        name: str,
        has_left: Callable[[], Awaitable[bool]] = there,
        *,
        low_priority: bool = False,
        user: str = "",
    ) -> asyncio.Task[None]:
        self.gates[name] = asyncio.Event()
        task = asyncio.create_task(self._hold(name, has_left, low_priority, user))
        await settled()
        return task

    async def let_go(self, name: str) -> None:
        self.gates[name].set()
        await settled()

    async def _hold(self, name: str, has_left: Callable[[], Awaitable[bool]], low_priority: bool, user: str) -> None:
        async with self.checks.slot(has_left, party(user), low_priority=low_priority):
            self.began.append(name)
            await self.gates[name].wait()


async def settled() -> None:
    """Everything that can go on without another fact has."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_submits_come_before_dry_runs_and_those_in_their_order() -> None:
    async def scenario() -> None:
        held = Held(FairQueue(1, 10))
        await held.come("first")
        for name, low_priority in (("dry 1", True), ("dry 2", True), ("submit 1", False), ("submit 2", False)):
            await held.come(name, low_priority=low_priority)
        for name in ("first", "submit 1", "submit 2", "dry 1", "dry 2"):
            await held.let_go(name)
        assert held.began == ["first", "submit 1", "submit 2", "dry 1", "dry 2"]
        await held.come("later")
        assert held.began[-1] == "later", "the slot is free again"

    asyncio.run(scenario())


def test_what_a_caller_left_is_never_begun() -> None:
    async def scenario() -> None:
        held = Held(FairQueue(1, 10))
        await held.come("first")
        left = [await held.come(f"left {number}", gone) for number in range(5)]
        await held.come("there")
        await held.let_go("first")
        assert held.began == ["first", "there"]
        for each in left:
            with pytest.raises(CallerLeftError):
                await each

    asyncio.run(scenario())


def test_the_queue_is_bounded_and_those_that_left_make_room() -> None:
    async def scenario() -> None:
        held = Held(FairQueue(1, 2))
        await held.come("first")
        await held.come("second", low_priority=True)
        third = await held.come("third", gone)
        await held.come("fourth")
        with pytest.raises(CallerLeftError):
            await third
        fifth = await held.come("fifth")
        with pytest.raises(FullError, match="there are 2 checks already"):
            await fifth

    asyncio.run(scenario())


def test_a_caller_that_is_cancelled_frees_its_slot() -> None:
    async def scenario() -> None:
        held = Held(FairQueue(1, 10))
        await held.come("first")
        waiting = await held.come("cancelled in queue")
        running = await held.come("cancelled at its slot")
        await held.come("last")
        waiting.cancel()
        held.gates["first"].set()
        while "cancelled at its slot" not in held.began:
            await asyncio.sleep(0)
        running.cancel()
        await settled()
        assert held.began == ["first", "cancelled at its slot", "last"]

    asyncio.run(scenario())


def test_slow_checks_of_one_user_leave_a_slot_to_others_who_are_served_alternately() -> None:
    async def scenario() -> None:
        held = Held(FairQueue(2, 10))
        for number in range(4):
            await held.come(f"ann {number}", user="ann")
        assert held.began == ["ann 0"]
        await held.come("ben 0", user="ben")
        await held.come("ben 1", user="ben")
        await held.come("cid 0", user="cid")
        assert held.began == ["ann 0", "ben 0"]
        for name in ("ben 0", "cid 0", "ben 1", "ann 0"):
            await held.let_go(name)
        assert held.began == ["ann 0", "ben 0", "cid 0", "ben 1", "ann 1"]

    asyncio.run(scenario())


def test_a_user_who_fills_the_queue_makes_room_for_others() -> None:
    async def scenario() -> None:
        held = Held(FairQueue(1, 3))
        tasks = [await held.come(f"ann {number}", user="ann") for number in range(4)]
        await held.come("ben", user="ben")
        with pytest.raises(FullError):
            await tasks[3]
        fifth = await held.come("ann 4", user="ann")
        with pytest.raises(FullError):
            await fifth
        await held.let_go("ann 0")
        assert held.began == ["ann 0", "ben"]

    asyncio.run(scenario())


def test_bodies_are_limited_in_bytes_together_and_for_each_user() -> None:
    bodies = BodyLimit("check", 100)
    with bodies.reserve(60, party("ann")):  # alone, so the bound of one body is another's business
        assert not bodies.has_room(1, party("ann"))
        with bodies.reserve(40, party("ben")):
            for nbytes, user in ((20, "ben"), (1, "cleo")):
                with pytest.raises(FullError, match="bytes of checks"), bodies.reserve(nbytes, party(user)):
                    raise AssertionError
        assert bodies.has_room(40, party("cleo"))
    with bodies.reserve(30, party("ann")), bodies.reserve(20, party("ann")):
        assert not bodies.has_room(1, party("ann"))
    assert bodies.has_room(50, party("ann"))


def test_one_user_leaves_room_for_a_body_of_another() -> None:
    bodies = BodyLimit("model", 1000, most=4)
    with bodies.reserve(1, party("ann")), bodies.reserve(1, party("ann")):
        with pytest.raises(FullError, match="2 models"), bodies.reserve(1, party("ann")):
            raise AssertionError
        with bodies.reserve(1, party("ben")), bodies.reserve(1, party("cleo")):
            assert not bodies.has_room(1, party("dora"))
    alone = BodyLimit("model", 1000, most=1)
    assert alone.has_room(1000, party("ann"))


def test_several_users_of_one_project_leave_room_for_bodies_of_others() -> None:
    bodies = BodyLimit("model", 100, most=4)
    with bodies.reserve(40, party("ann@vision")), bodies.reserve(30, party("ben@vision")):
        with pytest.raises(FullError, match="70 bytes of models of project vision"):
            bodies.reserve(10, party("cleo@vision")).__enter__()
        assert bodies.has_room(30, party("dora@speech"))
    with ExitStack() as held:
        for user in ("ann@vision", "ben@vision", "cleo@vision"):
            held.enter_context(bodies.reserve(1, party(user)))
        assert not bodies.has_room(1, party("dora@vision"))
        assert bodies.has_room(1, party("dora@speech"))


def test_several_users_of_one_project_leave_a_slot_to_others_and_take_turns_as_one() -> None:
    async def scenario() -> None:
        held = Held(FairQueue(3, 10))
        for name in ("ann", "ben", "cleo"):
            for number in range(2):
                await held.come(f"{name} {number}", user=f"{name}@vision")
        assert held.began == ["ann 0", "ben 0"], "one for each user, and one is left"
        await held.come("dora 0", user="dora@speech")
        await held.come("dora 1", user="dora@speech")
        assert held.began[-1] == "dora 0"
        await held.let_go("dora 0")
        assert held.began[-1] == "dora 1", "the slot that is left is not the first project's"
        await held.let_go("ann 0")
        await held.let_go("ben 0")
        assert held.began[-2:] == ["cleo 0", "ann 1"]

    asyncio.run(scenario())


def test_a_project_that_fills_the_queue_makes_room_for_others() -> None:
    async def scenario() -> None:
        held = Held(FairQueue(1, 4))
        users = ("ann", "ann", "ann", "ben", "cleo")
        tasks = [await held.come(f"{user} {number}", user=f"{user}@vision") for number, user in enumerate(users)]
        await held.come("dora", user="dora@speech")
        with pytest.raises(FullError):
            await tasks[2]
        await held.let_go("ann 0")
        assert held.began == ["ann 0", "dora"]
        refused = await held.come("ann 5", user="ann@vision")
        assert not refused.done(), "a slot in the queue is free again"

    asyncio.run(scenario())
