"""Turns of those who submit."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import forked_checks
from forked_checks import Seen, divide, echo, end, forker, lie, loop, refuse, take
from server_running import eventually
from server_specs import save_rows, spec_json
from weft.api.dry_run import Passes
from weft.api.job import Scale
from weft_server.planning.apart import Apart, ForkFailedError
from weft_server.planning.estimate import Bounds
from weft_server.planning.turns import HasLeft, Places, Turns, checked
from weft_server.problems import ProblemError
from weft_server.refusals import CallerLeftError, FullError, JobRefusedError
from weft_server.submissions import (
    check_scaled,
    check_submitted,
    dry_run_text,
    passes_text,
    programs_text,
    spec_text,
)


async def there() -> bool:
    return False


def hang() -> None:
    raise AssertionError


async def gone() -> bool:
    return True


class Held:
    """Callers of `checks`, who hold their turns until they are let go."""

    def __init__(self, checks: Turns) -> None:
        self.checks = checks
        self.began: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    async def come(
        self,
        name: str,
        has_left: Callable[[], Awaitable[bool]] = there,
        *,
        behind: bool = False,
        user: str = "",
    ) -> asyncio.Task[None]:
        self.gates[name] = asyncio.Event()
        task = asyncio.create_task(self._hold(name, has_left, behind, user))
        await settled()
        return task

    async def let_go(self, name: str) -> None:
        self.gates[name].set()
        await settled()

    async def _hold(self, name: str, has_left: Callable[[], Awaitable[bool]], behind: bool, user: str) -> None:
        async with self.checks.turn(has_left, behind=behind, user=user):
            self.began.append(name)
            await self.gates[name].wait()


async def settled() -> None:
    """Everything that can go on without another fact has."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_submits_come_before_dry_runs_and_those_in_their_order() -> None:
    async def scenario() -> None:
        held = Held(Turns(1, 10))
        await held.come("first")
        for name, behind in (("dry 1", True), ("dry 2", True), ("submit 1", False), ("submit 2", False)):
            await held.come(name, behind=behind)
        for name in ("first", "submit 1", "submit 2", "dry 1", "dry 2"):
            await held.let_go(name)
        assert held.began == ["first", "submit 1", "submit 2", "dry 1", "dry 2"]
        await held.come("later")
        assert held.began[-1] == "later", "the turn is free again"

    asyncio.run(scenario())


def test_what_a_caller_left_is_never_begun() -> None:
    async def scenario() -> None:
        held = Held(Turns(1, 10))
        await held.come("first")
        left = [await held.come(f"left {number}", gone) for number in range(5)]
        await held.come("there")
        await held.let_go("first")
        assert held.began == ["first", "there"]
        for each in left:
            with pytest.raises(CallerLeftError):
                await each

    asyncio.run(scenario())


def test_the_line_is_bounded_and_those_that_left_make_room() -> None:
    async def scenario() -> None:
        held = Held(Turns(1, 2))
        await held.come("first")
        await held.come("second", behind=True)
        third = await held.come("third", gone)
        await held.come("fourth")
        with pytest.raises(CallerLeftError):
            await third
        fifth = await held.come("fifth")
        with pytest.raises(FullError, match="there are 2 checks already"):
            await fifth

    asyncio.run(scenario())


def test_a_caller_that_is_cancelled_gives_its_turn_on() -> None:
    async def scenario() -> None:
        held = Held(Turns(1, 10))
        await held.come("first")
        waiting = await held.come("cancelled in line")
        running = await held.come("cancelled at its turn")
        await held.come("last")
        waiting.cancel()
        held.gates["first"].set()
        while "cancelled at its turn" not in held.began:
            await asyncio.sleep(0)
        running.cancel()
        await settled()
        assert held.began == ["first", "cancelled at its turn", "last"]

    asyncio.run(scenario())


def test_slow_checks_of_one_user_leave_a_turn_to_others_who_come_in_turn() -> None:
    async def scenario() -> None:
        held = Held(Turns(2, 10))
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


def test_a_user_who_fills_the_line_makes_room_for_others() -> None:
    async def scenario() -> None:
        held = Held(Turns(1, 3))
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


def endless(ended: list[str]) -> None:
    try:
        while True:
            try:
                sum(range(1000))
            except Exception:  # noqa: BLE001  # as a check may have it: it does not take the end for an error
                continue
    finally:
        ended.append("it ended")


def test_a_check_that_takes_too_long_is_stopped_and_says_so() -> None:
    ended: list[str] = []
    with pytest.raises(JobRefusedError, match=r"checking the job takes more than 0.1 s"):
        asyncio.run(checked(0.1, there, endless, ended))
    assert ended == ["it ended"]


def test_a_check_whose_caller_has_left_is_stopped() -> None:
    ended: list[str] = []
    with pytest.raises(CallerLeftError):
        asyncio.run(checked(60.0, gone, endless, ended))
    assert ended == ["it ended"]


def test_a_check_that_ends_in_time_gives_what_it_found() -> None:
    def wrong() -> None:
        raise ValueError("what is wrong")

    assert asyncio.run(checked(60.0, there, sum, (1, 2))) == 3
    with pytest.raises(ValueError, match="what is wrong"):
        asyncio.run(checked(60.0, there, wrong))


@pytest.fixture(scope="module")
def apart() -> Iterator[Apart]:
    tests = str(Path(forked_checks.__file__).parent)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")])))
        made = Apart("forked_checks", 1 << 30)
        asyncio.run(made.run(forker))
    yield made
    made.close()


@pytest.mark.parametrize("roots", [None, [Path("/data"), Path("/more")]])
def test_values_reach_a_fork_and_come_back_as_they_are(apart: Apart, roots: list[Path] | None) -> None:
    body, text = b"\0\xff{" + bytes(1 << 20), 'it is "said"\n\u2028' * 100_000
    assert asyncio.run(checked(60.0, there, echo, body, text, roots, apart=apart)) == Seen(body, text, roots)


def test_a_fork_checks_a_job_and_tells_of_it_as_the_server_would(tmp_path: Path) -> None:
    document = spec_json(save_rows(tmp_path / "rows.npz"), optimizer={"name": "adam", "lr": 1e-3}, ema={"decay": 0.5})
    body, roots, bounds = json.dumps(document).encode(), (tmp_path,), Bounds()
    here = check_submitted(body, roots, bounds, 100)
    calls: list[tuple[Callable[..., object], tuple[object, ...]]] = [
        (check_submitted, (body, roots, bounds, 100)),
        (check_submitted, (body, None, bounds, 100)),
        (check_scaled, (here.text, Scale(workers=3), roots, bounds)),
        (dry_run_text, (here.plan, None, here.text, Passes.FULL, "snapshots")),
        (spec_text, (here.text, True)),
        (programs_text, (here.plan,)),
        (passes_text, (here.text, here.plan, False)),
    ]
    apart = Apart("weft_server.submissions", 1 << 30)
    try:
        for function, arguments in calls:
            assert asyncio.run(checked(60.0, there, function, *arguments, apart=apart)) == function(*arguments)
        with pytest.raises(JobRefusedError, match="at most 1 are taken here"):
            asyncio.run(checked(60.0, there, check_submitted, body, roots, bounds, 1, apart=apart))
    finally:
        apart.close()


@pytest.mark.parametrize("code", ["", "malformed-json"])
def test_what_a_fork_refuses_is_raised(apart: Apart, code: str) -> None:
    with pytest.raises((JobRefusedError, ProblemError)) as here:
        refuse(code)
    with pytest.raises(type(here.value)) as there_:
        asyncio.run(checked(60.0, there, refuse, code, apart=apart))
    assert str(there_.value) == str(here.value)
    assert vars(there_.value) == vars(here.value)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(divide, (0,)), (lie, ()), (refuse, ("no-such-code",)), (hang, ())],
    ids=["defect", "value of another type", "unknown problem", "function that is not offered"],
)
def test_what_no_check_answers_is_an_internal_error(
    apart: Apart, function: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    with pytest.raises(ForkFailedError):
        asyncio.run(checked(60.0, there, function, *arguments, apart=apart))


@pytest.mark.parametrize(("has_left", "error"), [(there, JobRefusedError), (gone, CallerLeftError)])
def test_a_computation_apart_ends_with_its_time_or_its_caller(
    apart: Apart, tmp_path: Path, has_left: HasLeft, error: type[Exception]
) -> None:
    begun = tmp_path / "pid"

    async def left_once_begun() -> bool:
        return begun.exists() and await has_left()

    with pytest.raises(error):
        asyncio.run(checked(30.0 if has_left is gone else 3.0, left_once_begun, loop, begun, apart=apart))
    eventually(lambda: not Path(f"/proc/{begun.read_text()}").exists(), "the process has ended")


@pytest.mark.parametrize(("function", "argument"), [(end, 3), (take, 1 << 31)])
def test_a_computation_apart_that_breaks_refuses_its_job_alone(
    apart: Apart, function: Callable[[int], object], argument: int
) -> None:
    with pytest.raises(JobRefusedError, match=r"ended in the middle of it.* 1073741824 bytes of memory"):
        asyncio.run(checked(60.0, there, function, argument, apart=apart))
    assert asyncio.run(checked(60.0, there, divide, 1, apart=apart)) == 1


def test_a_process_that_was_killed_is_started_again(apart: Apart, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = str(Path(forked_checks.__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")])))
    killed = asyncio.run(checked(60.0, there, forker, apart=apart))
    os.kill(killed, signal.SIGKILL)
    assert asyncio.run(checked(60.0, there, forker, apart=apart)) != killed


def test_bodies_have_places_by_bytes_together_and_of_each_user() -> None:
    places = Places("check", 100, of_one_bytes=50)
    with places.place(60, "ann"):  # alone, so the bound of one body is another's business
        assert not places.has_room(1, "ann")
        with places.place(40, "ben"):
            for nbytes, user in ((20, "ben"), (1, "cleo")):
                with pytest.raises(FullError, match="bytes of checks"), places.place(nbytes, user):
                    raise AssertionError
        assert places.has_room(40, "cleo")
    with places.place(30, "ann"), places.place(20, "ann"):
        assert not places.has_room(1, "ann")
    assert places.has_room(50, "ann")
