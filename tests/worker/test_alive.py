"""The file that says that a daemon lives: old once the daemon's own work stands still, whatever its heartbeat does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server_running import eventually
from weft.agent.alive import AliveFile, Question
from weft.agent.children import Forkserver
from weft.agent.daemon import AgentDaemon
from weft.agent.state import Holding
from weft.api.agent import AgentKind, Orders, Registration
from weft.http import Retry
from weft_worker.settings import WorkerSettings
from worker_jobs import WAIT_S

NOWHERE = "http://127.0.0.1:1"
LONG_AGO = 1000.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries come soon after each other, and what hangs is known soon."""
    monkeypatch.setattr("weft.agent.retry.PAUSES", Retry(first_s=0.005, longest_s=0.01))


class Beats:
    """Counts a membership's turns, and sees which of them touch the file."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = file
        self.turns = 0
        intact = AliveFile.touch

        def touch(each: AliveFile) -> None:
            intact(each)
            self.turns += 1

        monkeypatch.setattr(AliveFile, "touch", touch)

    def touches(self) -> bool:
        """Whether some of the next turns touch the file."""
        begun = self.turns
        eventually(lambda: self.turns > begun + 1, "a heartbeat")
        os.utime(self.file, (LONG_AGO, LONG_AGO))
        begun = self.turns
        eventually(lambda: self.turns > begun + 3, "three heartbeats")
        return self.file.stat().st_mtime != LONG_AGO


@pytest.fixture
def beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Beats:
    return Beats(tmp_path / "alive", monkeypatch)


Start = Callable[[Any], None]


@pytest.fixture
def start() -> Iterator[Start]:
    """Runs daemons, and ends them."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def run(daemon: Any) -> None:
        threads.append(threading.Thread(target=daemon.run, args=(stop,)))
        threads[-1].start()

    yield run
    stop.set()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def agent_daemon(alive_file: Path) -> AgentDaemon:
    settings = WorkerSettings(server=NOWHERE, name="worker-0", alive_file=alive_file)
    registration = Registration(kind=AgentKind.WORKER, name="worker-0", pid=1)
    return AgentDaemon(settings, registration, Forkserver("weft_worker.worker_child"), lambda allocation: {})


def test_a_daemon_whose_queue_stands_still_is_not_alive(
    beats: Beats, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, released = threading.Event(), threading.Event()
    intact = Holding.handle

    def handle(state: Holding, stimulus: Any) -> Any:
        stuck.set()
        released.wait(WAIT_S)
        return intact(state, stimulus)

    monkeypatch.setattr(Holding, "handle", handle)
    daemon = agent_daemon(beats.file)
    start(daemon)
    try:
        eventually(beats.touches, "an idle daemon's file is touched")
        monkeypatch.setattr(daemon._question, "_limit_s", 0.02)
        daemon._members._holder.hold(Orders(version=1, allocations=[]))  # type: ignore[attr-defined]
        assert stuck.wait(WAIT_S)
        eventually(lambda: not beats.touches(), "its file grows old though it asks the server")
    finally:
        released.set()
    monkeypatch.setattr(daemon._question, "_limit_s", WAIT_S)
    eventually(beats.touches, "it goes on")


def test_a_question_waits_for_its_answer_and_no_second_is_asked() -> None:
    now, asked = [0.0], []
    question = Question(lambda: asked.append(now[0]), limit_s=5, clock=lambda: now[0])
    for at, lives in ((0, True), (4.9, True), (5, False), (9, False)):
        now[0] = at
        assert question.lives() is lives
    assert asked == [0]
    question.answer()
    now[0] = 1000
    assert question.lives()
    assert asked == [0, 1000]


def test_a_file_that_cannot_be_touched_ends_no_heartbeat(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = AliveFile(tmp_path / "missing" / "alive", lambda: True)
    file.touch()
    file.touch()
    (record,) = caplog.records
    assert "cannot be touched" in record.message
