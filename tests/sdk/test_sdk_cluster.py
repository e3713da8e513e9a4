"""A local cluster: daemons start together, end together, and are spoken of by name when they do not."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from acceptance_processes import alive, await_that, descendants
from weft.api.lifecycle import AgentState
from weft.exclusive import check_port_is_free, hold_directory
from weft.process import Command, Process

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
)
OBEDIENT = "import sys; print('reading', flush=True); sys.stdin.read(); print('parent gone', flush=True)"
MORTAL = "import sys; print('one'); print('two: last words', flush=True); sys.exit(7)"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[object]:
    """Starts a daemon of that source."""
    started: list[Process] = []

    def start(source: str, log: str = "it.log") -> Process:
        (tmp_path / "fake_daemon.py").write_text(source)
        path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = Command("fake-0", "fake_daemon", (), tmp_path / log, tmp_path, {"PYTHONPATH": path})
        started.append(Process(command))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def await_line(process: Process, line: str) -> None:
    await_that(lambda: line in process.log_tail(), f"{line!r} in the log")


def test_a_daemon_that_is_deaf_to_sigterm_is_killed(daemon) -> None:  # type: ignore[no-untyped-def]  # a fixture
    process = daemon(STUBBORN)
    await_line(process, "deaf")
    process.ask_to_end()
    process.end(grace_s=0)
    assert process.exit_code == -signal.SIGKILL


class FakeDaemon:
    """Stands in for a process: how it ends, and how long it was given for that."""

    def __init__(self, hangs: bool, told: list[str]) -> None:
        self.hangs = hangs
        self.told = told
        self.graces: list[float] = []
        self.killed = False

    def ask_to_end(self) -> None:
        self.told.append("hanging" if self.hangs else "obedient")

    def end(self, grace_s: float) -> None:
        self.graces.append(grace_s)
        self.killed = self.hangs
        if self.hangs:
            time.sleep(max(grace_s, 0))

    def kill(self) -> None:
        pass  # each has ended by then


@pytest.mark.parametrize("hanging", [True, False])
def test_agents_that_hang_take_nothing_of_the_server_s_time_to_end(
    hanging: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.cluster.STOP_GRACE_S", 0.3)
    told: list[str] = []
    server, *agents = daemons = [FakeDaemon(False, told), FakeDaemon(hanging, told), FakeDaemon(hanging, told)]
    cluster = weft.Cluster()
    cluster.processes = daemons  # type: ignore[assignment]  # what stop calls of them
    cluster.stop()
    assert server.graces[0] > 0
    assert told == [*["hanging" if hanging else "obedient"] * 2, "obedient"]
    assert [agent.killed for agent in agents] == [hanging, hanging]
    assert not hanging or agents[1].graces[0] <= 0  # agents share their time
    assert cluster.processes == []


def test_a_daemon_s_standard_input_ends_when_it_is_asked_to_end(daemon) -> None:  # type: ignore[no-untyped-def]
    process = daemon("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + OBEDIENT)
    await_line(process, "reading")
    process.ask_to_end()
    process.end(grace_s=20)
    assert process.exit_code == 0
    assert process.log_tail()[-1] == "parent gone"


def test_an_obituary_has_name_exit_code_and_last_words_of_this_life_alone(daemon) -> None:  # type: ignore[no-untyped-def]
    first = daemon("print('an earlier life')")
    first.end(20)
    process = daemon(MORTAL)
    process.end(20)
    text = process.obituary()
    assert text.startswith("fake-0 ended with exit code 7; the end of ")
    assert text.endswith(":\n  one\n  two: last words")
    assert "an earlier life" in (process.command.log).read_text()


def test_an_obituary_shows_records_as_people_read_them(daemon) -> None:  # type: ignore[no-untyped-def]  # a fixture
    process = daemon("""print('{"event": "no way on", "level": "error", "slot": 1, "exception": "Trace\\\\nEnd"}')""")
    process.end(20)
    assert process.obituary().endswith(":\n  error no way on slot=1\n  Trace\n  End")


def test_a_notice_of_death_has_the_log_s_name_and_few_lines(daemon) -> None:  # type: ignore[no-untyped-def]
    process = daemon(MORTAL)
    process.end(20)
    assert process.notice_of_death(1).splitlines() == [
        f"fake-0 ended with exit code 7; its log is {process.command.log}",
        "  two: last words",
    ]


def test_a_log_that_is_large_is_begun_anew_while_its_daemon_writes_to_it(
    daemon, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("weft.process.LOG_BYTES", 4)
    source = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    process = daemon(source)
    log = process.command.log
    for line in ("one", "two", "three", "four", "4"):
        process._popen.stdin.write(f"{line}\n".encode())
        process._popen.stdin.flush()
        await_line(process, line)
        process.bound_log()
    kept = [path.read_text() for path in (log, log.with_name("it.log.1"), log.with_name("it.log.2"))]
    assert kept == ["4\n", "four\n", "three\n"]
    assert process.log_tail() == ["4"]
    log.unlink()
    process.bound_log()
    assert [log.with_name(f"it.log.{number}").read_text() for number in (1, 2)] == ["four\n", "three\n"]


def test_a_signal_is_named_and_what_was_logged_before_sigkill_is_not_told_as_its_reason(daemon) -> None:  # type: ignore[no-untyped-def]
    process = daemon(STUBBORN)
    await_line(process, "deaf")
    process.kill()
    assert "ended with signal SIGKILL" in process.obituary()
    assert process.notice_of_death(1) == f"fake-0 ended with signal SIGKILL; its log is {process.command.log}"


def test_a_taken_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(weft.ClusterError, match=f"port {port} of 127.0.0.1 is in use"):
            check_port_is_free("127.0.0.1", port)
        with pytest.raises(weft.ClusterError, match="in use"):
            weft.Cluster(1, 1, port=port).start()
    check_port_is_free("127.0.0.1", port)


def test_a_directory_is_one_cluster_s(tmp_path: Path) -> None:
    with hold_directory(tmp_path), pytest.raises(weft.ClusterError, match=f"started by process {os.getpid()}"):
        weft.Cluster(1, 1, directory=tmp_path).start()
    with hold_directory(tmp_path):
        pass


def test_a_cluster_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 and 2"):
        weft.Cluster(workers=0)
    with pytest.raises(weft.ClusterError, match="no directory"):
        weft.Cluster(data_root=tmp_path / "nowhere").start()
    (tmp_path / "file").touch()
    with pytest.raises(weft.ClusterError, match="cannot be used"):
        weft.Cluster(directory=tmp_path / "file").start()
    with pytest.raises(weft.ClusterError, match="not started"):
        weft.Cluster().client()


def test_a_server_that_cannot_start_is_told_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_SERVER_LOST_AFTER_S", "0.001")
    cluster = weft.Cluster(1, 1)
    with pytest.raises(weft.ClusterError, match=r"server ended with exit code 2(.|\n)*two heartbeats"):
        cluster.start()
    assert cluster.processes == []


def test_a_start_that_takes_too_long_is_given_up_and_leaves_nothing() -> None:
    before = descendants(os.getpid())
    with pytest.raises(weft.ClusterError, match=r"waited 0 s for the server to listen"):
        weft.Cluster(1, 1, start_timeout_s=0).start()
    assert descendants(os.getpid()) <= before


def test_a_cluster_starts_registers_mourns_bounds_its_logs_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tokens: the acceptance tests' clusters have none."""
    for name in ("WEFT_SERVER_TOKEN", "WEFT_SERVER_AGENT_TOKEN"):
        monkeypatch.setenv(name, f"a-secret-as-{name}")
    said: list[str] = []
    cluster = weft.Cluster(1, 1, directory=tmp_path / "state", data_root=tmp_path, device="auto", progress=said.append)
    with cluster, cluster.client() as client:
        pids = {process.name: process.pid for process in cluster.processes}
        assert list(pids) == ["server", "shard-0", "worker-0"]
        told = [process.name for process in cluster.processes if "--device" in process.command.arguments]
        assert told == ["worker-0"]
        agents = client.agents()
        assert {agent.name: agent.pid for agent in agents} == {n: p for n, p in pids.items() if n != "server"}
        assert {agent.state for agent in agents} == {AgentState.ALIVE}
        assert (tmp_path / "state" / "logs" / "worker-0.log").exists()
        assert said[0] == "starting the server"
        state = [tmp_path / "state", *(tmp_path / "state").rglob("*")]
        assert [str(path) for path in state if path.stat().st_mode & 0o077] == []
        with pytest.raises(weft.ClusterError, match="started already"):
            cluster.start()
        with pytest.raises(weft.ClusterError, match=r"a cluster runs in .* already"):
            weft.Cluster(1, 1, directory=tmp_path / "state").start()
        assert cluster.ended() == []
        os.kill(pids["worker-0"], signal.SIGKILL)
        ended: list[Process] = []
        await_that(lambda: bool(ended.extend(cluster.ended()) or ended), "its end")
        assert [process.obituary().split(";")[0] for process in ended] == ["worker-0 ended with signal SIGKILL"]
        assert cluster.ended() == []
        assert [agent.name for agent in client.agents() if agent.state is AgentState.LOST] == ["worker-0"]
        monkeypatch.setattr("weft.process.LOG_BYTES", 1)
        await_that((tmp_path / "state" / "logs" / "server.log.1").exists, "the server's log to be begun anew")
    assert not any(alive(pid) for pid in pids.values())
    cluster.stop()
