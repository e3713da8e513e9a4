"""What takes long is computed on a thread or in a fork: how it ends, and what its caller hears."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import forked_checks
from forked_checks import Seen, divide, echo, end, forge, forker, lie, loop, read, refuse, sleep, take
from server_running import eventually
from server_specs import save_rows, spec_json
from weft.agent.children import NO_LIMITS, ProcessLimits
from weft.api.dry_run import Passes
from weft.api.job import Scale
from weft_server.forks import ForkFailedError, Forks, LimitError
from weft_server.planning.estimate import Bounds
from weft_server.problems import ProblemError
from weft_server.queues import HasLeft
from weft_server.refusals import CallerLeftError, JobRefusedError, NoProcessError
from weft_server.submissions import check_scaled, check_submitted, dry_run_text

LIMITS = ProcessLimits(memory_bytes=1 << 30, seconds=60.0, file_bytes=0, open_files=64, network=False, nice=1)


async def there() -> bool:
    return False


async def gone() -> bool:
    return True


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    tests = str(Path(forked_checks.__file__).parent)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")])))
        made = Forks("forked_checks")
    asyncio.run(made.run(LIMITS, there, divide, 1))
    yield made
    made.close()


# --- On a thread ------------------------------------------------------------------------------------------------------


def endless(ended: list[str]) -> None:
    try:
        while True:
            try:
                sum(range(1000))
            except Exception:  # noqa: BLE001  # as a check may have it: it does not take the end for an error
                continue
    finally:
        ended.append("it ended")


@pytest.mark.parametrize(
    ("seconds", "has_left", "error", "told"),
    [(0.1, there, LimitError, "takes more than 0.1 s"), (60.0, gone, CallerLeftError, "has left")],
)
def test_what_runs_on_a_thread_is_stopped_once_its_time_is_over_or_its_caller_has_left(
    forks: Forks, seconds: float, has_left: HasLeft, error: type[Exception], told: str
) -> None:
    ended: list[str] = []
    with pytest.raises(error, match=told):
        asyncio.run(forks.run(replace(NO_LIMITS, seconds=seconds), has_left, endless, ended, is_small=True))
    assert ended == ["it ended"]


def test_what_ends_in_time_on_a_thread_gives_what_it_found(forks: Forks) -> None:
    def wrong() -> None:
        raise ValueError("what is wrong")

    assert asyncio.run(forks.run(LIMITS, there, sum, (1, 2), is_small=True)) == 3
    with pytest.raises(ValueError, match="what is wrong"):
        asyncio.run(forks.run(LIMITS, there, wrong, is_small=True))


def test_while_a_thread_hangs_what_is_small_is_computed_in_forks(forks: Forks, tmp_path: Path) -> None:
    """A thread that waits for a file cannot be ended; a fork can."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    short = replace(LIMITS, seconds=0.1)

    async def scenario() -> None:
        with pytest.raises(LimitError, match=rf"takes more than 0.1 s: it waits for {pipe}"):
            await forks.run(short, there, read, pipe, is_small=True)
        assert await forks.run(LIMITS, there, forker, is_small=True) != os.getppid()
        with pytest.raises(LimitError, match=rf"takes more than 2 s: it waits for {pipe}"):
            await forks.run(replace(LIMITS, seconds=2.0), there, read, pipe, is_small=True)
        with pipe.open("wb"):
            pass  # the thread reads its end
        while await forks.run(LIMITS, there, forker, is_small=True) != os.getppid():
            await asyncio.sleep(0.01)

    asyncio.run(scenario())


# --- In a fork --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("roots", [None, [Path("/data"), Path("/more")]])
def test_values_reach_a_fork_and_come_back_as_they_are(forks: Forks, roots: list[Path] | None) -> None:
    body, text = b"\0\xff{" + bytes(1 << 20), 'it is "said"\n\u2028' * 100_000
    assert asyncio.run(forks.run(LIMITS, there, echo, body, text, roots)) == Seen(body, text, roots)


def test_a_fork_checks_a_job_and_tells_of_it_as_the_server_would(tmp_path: Path) -> None:
    document = spec_json(save_rows(tmp_path / "rows.npz"), optimizer={"name": "adam", "lr": 1e-3}, ema={"decay": 0.5})
    body, roots, bounds = json.dumps(document).encode(), (tmp_path,), Bounds()
    here = check_submitted(body, roots, bounds, 100)
    calls: list[tuple[Callable[..., object], tuple[object, ...]]] = [
        (check_submitted, (body, roots, bounds, 100)),
        (check_submitted, (body, None, bounds, 100)),
        (check_scaled, (here.text, Scale(workers=3), roots, bounds)),
        (dry_run_text, (here.plan, None, here.text, Passes.SHORT, "snapshots")),
    ]
    forks = Forks("weft_server.submissions")
    try:
        for function, arguments in calls:
            assert asyncio.run(forks.run(LIMITS, there, function, *arguments)) == function(*arguments)
        with pytest.raises(JobRefusedError, match="at most 1 are taken here"):
            asyncio.run(forks.run(LIMITS, there, check_submitted, body, roots, bounds, 1))
    finally:
        forks.close()


@pytest.mark.parametrize("code", ["", "malformed-json"])
def test_what_a_fork_refuses_is_raised(forks: Forks, code: str) -> None:
    with pytest.raises((JobRefusedError, ProblemError)) as here:
        refuse(code)
    with pytest.raises(type(here.value)) as there_:
        asyncio.run(forks.run(LIMITS, there, refuse, code))
    assert str(there_.value) == str(here.value)
    assert vars(there_.value) == vars(here.value)


@pytest.mark.parametrize(
    ("function", "arguments", "told"),
    [
        (divide, (0,), "divide in a fork raised ZeroDivisionError"),
        (lie, (), "answer is none"),
        (forge, ("no-such-code",), "it is none"),
        (endless, ([],), "endless in a fork raised KeyError"),
        (end, (3,), "its process ended with status 3"),
        (end, (-signal.SIGSEGV,), "its process was ended by SIGSEGV"),
    ],
)
def test_what_is_no_answer_is_a_failure_of_the_servers_and_nothing_is_said_of_memory(
    forks: Forks, function: Callable[..., object], arguments: tuple[object, ...], told: str
) -> None:
    with pytest.raises(ForkFailedError, match=told):
        asyncio.run(forks.run(LIMITS, there, function, *arguments))
    assert asyncio.run(forks.run(LIMITS, there, divide, 1)) == 1


def test_a_defect_is_in_the_log_with_its_traceback(forks: Forks, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ForkFailedError):
        asyncio.run(forks.run(LIMITS, there, divide, 0))
    assert 'forked_checks.py", line' in capfd.readouterr().err


@pytest.mark.parametrize(
    ("function", "arguments", "limits", "told"),
    [
        (take, (1 << 31,), LIMITS, "takes more than 1073741824 bytes of memory"),
        (end, (-signal.SIGKILL,), LIMITS, "takes more than the memory that this machine has"),
        (end, (-signal.SIGXCPU,), LIMITS, "takes more than 60 s"),
    ],
)
def test_what_takes_too_much_is_told_by_its_limit(
    forks: Forks, function: Callable[..., object], arguments: tuple[object, ...], limits: ProcessLimits, told: str
) -> None:
    with pytest.raises(LimitError, match=told):
        asyncio.run(forks.run(limits, there, function, *arguments))


@pytest.mark.parametrize(
    ("seconds", "has_left", "error"), [(2.0, there, (LimitError, NoProcessError)), (60.0, gone, CallerLeftError)]
)
def test_a_fork_ends_with_its_time_or_its_caller(
    forks: Forks, capfd: pytest.CaptureFixture[str], seconds: float, has_left: HasLeft, error: type[Exception]
) -> None:
    """Which of the first two it is depends on what else this machine does."""
    told: list[str] = []

    async def left_once_begun() -> bool:
        told.extend(capfd.readouterr().err.split())
        return bool(told) and await has_left()

    with pytest.raises(error):
        asyncio.run(forks.run(replace(LIMITS, seconds=seconds), left_once_begun, loop))
    told.extend(capfd.readouterr().err.split())
    eventually(lambda: not Path(f"/proc/{told[0]}").exists(), "the process has ended")


def test_a_fork_that_got_no_processor_in_its_time_is_to_be_asked_again(forks: Forks) -> None:
    with pytest.raises(NoProcessError, match=r"busy: in 1 s it had 0\.\d s of processor time for it; send it again"):
        asyncio.run(forks.run(replace(LIMITS, seconds=1.0), there, sleep))


def test_a_forkserver_that_was_killed_fails_what_it_had_and_is_started_again(
    forks: Forks,
) -> None:
    killed = asyncio.run(forks.run(LIMITS, there, forker))

    async def lost() -> bool:
        os.kill(killed, signal.SIGKILL)
        return False

    with pytest.raises(NoProcessError, match="was lost; send it again"):
        asyncio.run(forks.run(LIMITS, lost, loop))
    assert asyncio.run(forks.run(LIMITS, there, forker)) != killed
    with pytest.raises(NoProcessError, match="was told to end; send it again"):
        asyncio.run(forks.run(LIMITS, there, end, -signal.SIGTERM))


def test_where_no_process_can_be_had_it_is_said_to_be_temporary(tmp_path: Path) -> None:
    (tmp_path / "unforkable.py").write_text(
        "import os\nmain = None\ndef no():\n    raise BlockingIOError('no more')\ndef prepare():\n    os.fork = no\n"
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
        forks = Forks("unforkable")
    try:
        with pytest.raises(NoProcessError, match="the machine has no process for it; send it again"):
            asyncio.run(forks.run(LIMITS, there, forker))
    finally:
        forks.close()
