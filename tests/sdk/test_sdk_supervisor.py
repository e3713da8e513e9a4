"""Daemons that end are started again: when, how often, and what is said of it."""

from __future__ import annotations

import errno
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from acceptance_processes import alive, await_that, descendants
from weft.agent.held_files import FileLock
from weft.api.lifecycle import AgentState, JobState
from weft.cli import up
from weft.errors import ClusterError
from weft.exclusive import hold_directory
from weft.http import Retry
from weft.supervisor import AWAY, DELETED, Message, Restarts, Supervisor
from weft.terminal import Console

LIMITS = Retry(attempts=4, first_s=1.0, longest_s=3.0)


def test_pauses_double_up_to_a_limit_and_a_daemon_that_ends_again_and_again_is_let_go() -> None:
    restarts = Restarts(LIMITS)
    assert [restarts.ended("a", 0.1, 0.0) for _ in range(5)] == [1.0, 2.0, 3.0, 3.0, None]
    assert restarts.ended("b", 0.1, 0.0) == 1.0


def test_a_long_life_ends_the_row() -> None:
    restarts = Restarts(LIMITS)
    assert [restarts.ended("a", lived, 0.0) for lived in (0, 0, 59.9, 60.0, 0)] == [1.0, 2.0, 3.0, 1.0, 2.0]


def test_a_daemon_is_due_once_when_its_pause_is_over() -> None:
    restarts = Restarts(LIMITS)
    restarts.ended("a", 0, now=10.0)
    restarts.ended("b", 0, now=10.5)
    assert restarts.due(10.9) == []
    assert restarts.due(11.0) == ["a"]
    assert restarts.due(20.0) == ["b"]
    assert restarts.due(30.0) == []


class FakeProcess:
    def __init__(self, name: str) -> None:
        self.name, self.pid, self.lived_s = name, 7, 0.1

    def obituary(self) -> str:
        return f"{self.name} ended"

    def notice_of_death(self, most: int) -> str:
        return f"{self.name} ended"


class FakeCluster:
    """Whatever is started ends at once, but for what is in `lives`."""

    url = "http://127.0.0.1:1"
    directory = Path("/state")

    def __init__(self, *names: str) -> None:
        self.lives: set[str] = set()
        self.refuses = False
        self.is_deleted = False
        self.has_it: str | None = None
        """Who has the directory."""
        self.started: list[str] = []
        self._ended = [FakeProcess(name) for name in names]

    def ended(self) -> list[Any]:
        ended, self._ended = self._ended, []
        return ended

    def restart(self, name: str) -> Any:
        if self.refuses:
            raise OSError("no more processes")
        self.started.append(name)
        process = FakeProcess(name)
        if name not in self.lives:
            self._ended.append(process)
        return process

    def hold_directory(self) -> bool:
        if self.has_it is not None:
            raise ClusterError(self.has_it)
        is_deleted, self.is_deleted = self.is_deleted, False
        return is_deleted

    def listens(self) -> bool:
        return "server" in self.lives


def tend(cluster: FakeCluster, until: float) -> list[Message]:
    """What is told when looked at each half second."""
    now = [0.0]
    supervisor = Supervisor(cluster, LIMITS, clock=lambda: now[0])  # type: ignore[arg-type]  # a fake
    told = []
    while now[0] <= until:
        told += supervisor.poll()
        now[0] += 0.5
    return told


def test_a_server_is_started_again_on_its_port_and_said_to_listen_once() -> None:
    cluster = FakeCluster("server")
    cluster.lives.add("server")
    assert tend(cluster, 10) == [
        Message(f"server ended\nserver is started again on its port and data in 1 s. {AWAY}", is_error=True),
        Message("server is started again as process 7"),
        Message("the server listens again at http://127.0.0.1:1"),
    ]


@pytest.mark.parametrize("refuses", [False, True])
def test_a_server_that_ends_again_and_again_is_tried_for_ever_and_told_ever_more_rarely(refuses: bool) -> None:
    """Its disk is full, its database is corrupt: the agents live, and so does what they compute."""
    cluster = FakeCluster("server")
    cluster.refuses = refuses
    now = [0.0]
    supervisor = Supervisor(cluster, LIMITS, clock=lambda: now[0])  # type: ignore[arg-type]  # a fake
    told = []
    while now[0] < 300:
        told += [each.text for each in supervisor.poll() if each.is_error]
        now[0] += 0.5
    rare = [text for text in told if "in a row, within" in text]
    assert [text.split(" has ended ")[1].split(" ")[0] for text in rare] == ["5", "8", "16", "32", "64"]
    assert rare[0].splitlines()[1] == (
        "server has ended 5 times in a row, within 60 s of its start. Workers and shards are kept, and so is what they "
        "compute; it is tried again each 3 s until it starts: mend what its log tells of"
    )
    assert len(told) == 4 + len(rare)
    assert told[1].endswith(f"has ended 2 times in a row; it is started again on its port and data in 2 s. {AWAY}")
    cluster.lives.add("server")
    cluster.refuses = False
    for _ in range(8):
        now[0] += 0.5
        told += [each.text for each in supervisor.poll()]
    assert told[-1] == "the server listens again at http://127.0.0.1:1"


def test_an_agent_that_ends_again_and_again_is_let_go_and_the_others_go_on() -> None:
    cluster = FakeCluster("worker-0", "worker-1")
    cluster.lives.add("worker-1")
    told = tend(cluster, 60)
    assert cluster.started.count("worker-0") == 4
    assert cluster.started.count("worker-1") == 1
    assert [each.text for each in told if "not started again" in each.text] == [
        "worker-0 ended\nworker-0 has ended 5 times in a row, within 60 s of its start, "
        "and is not started again; the others go on"
    ]


def test_the_jobs_of_an_agent_that_ends_are_said_to_go_on() -> None:
    cluster = FakeCluster("shard-1")
    cluster.lives.add("shard-1")
    lines = tend(cluster, 10)[0].text.splitlines()
    assert lines[1] == (
        "shard-1 is started again in 1 s. Jobs go on: another worker takes the place of one that ended, and after a "
        "shard they go on from their newest snapshot."
    )
    assert lines[2].endswith("weft jobs")
    assert len(lines) == 3  # and one line of its log


def test_a_start_that_fails_counts_as_a_death() -> None:
    cluster = FakeCluster("worker-0")
    cluster.refuses = True
    assert "worker-0 cannot be started: no more processes\nworker-0 has ended 5 times" in tend(cluster, 60)[-1].text


def test_a_deleted_directory_is_told_once_also_while_another_cluster_has_it() -> None:
    cluster = FakeCluster()
    supervisor = Supervisor(cluster)  # type: ignore[arg-type]  # a fake
    cluster.is_deleted, cluster.has_it = True, "the cluster of process 7 has it now"
    told = [each.text for _ in range(3) for each in supervisor.poll()]
    assert told == [
        "the directory /state was deleted, and cannot be made again: the cluster of process 7 has it now. Jobs go on; "
        f"`kill {os.getpid()}` ends this cluster"
    ]
    cluster.has_it = None
    assert [each.text for _ in range(3) for each in supervisor.poll()] == [
        f"the directory /state was deleted. {DELETED}"
    ]


def test_a_deleted_lock_is_taken_again_unless_another_has_taken_it(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert (first.take(), second.take(), first.is_deleted) == (True, False, False)
    first.path.unlink()
    assert first.is_deleted
    assert (second.take(), first.take(), first.is_deleted) == (True, False, True)
    second.release()
    assert (first.take(), first.is_deleted) == (True, False)
    assert first.path.read_text() == f"{os.getpid()}\n"
    first.release()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A disk with little more than a server leaves free; None for who may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96m", "weft-test", folder]
    if subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode:
        yield None
        return
    yield folder
    subprocess.run(["umount", folder], check=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Also of what others give back meanwhile."""
    stop = threading.Event()

    def fill() -> None:
        with (disk / "filler").open("ab", 0) as file:
            while not stop.wait(0.001):
                with suppress(OSError):
                    while True:
                        file.write(bytes(1 << 16))

    filling = threading.Thread(target=fill)
    filling.start()
    yield
    stop.set()
    filling.join()
    (disk / "filler").unlink()


@contextmanager
def corrupt(database: Path) -> Iterator[None]:
    kept = database.read_bytes()
    for path in database.parent.glob("weft.db*"):
        path.unlink()
    database.write_bytes(b"no database" * 1000)
    yield
    database.write_bytes(kept)


def test_weft_up_keeps_its_agents_while_its_server_cannot_start_and_without_its_folder(
    tmp_path: Path, small_disk: Path | None
) -> None:
    """The server has no room on its disk, or a corrupt database where no disk can be mounted."""
    state = (small_disk or tmp_path) / "state"
    cluster = weft.Cluster(1, 1, directory=state, data_root=tmp_path)
    supervisor = Supervisor(cluster, Retry(attempts=1, first_s=0.05, longest_s=0.1))
    told: list[str] = []

    def tells(what: str) -> bool:
        told.extend(each.text for each in supervisor.poll())
        return any(what in text for text in told)

    with cluster:
        agents = pids(cluster.url)
        cluster.processes[0].kill()
        with corrupt(state / "weft.db") if small_disk is None else full(small_disk):
            await_that(lambda: tells("ended 2 times in a row"), "a second vain start")
            assert ("cannot be opened as weft's database" if small_disk is None else " is full (") in "".join(told)
        await_that(lambda: tells("listens again"), "the server")
        await_that(lambda: pids(cluster.url) == agents, "the same agents")
        with cluster.client() as client:
            job = trained(client, tmp_path / "rows.npz")
            await_that(lambda: job.refresh().progress.step > 0, "the first steps")
            remove(state)
            job.stop()
            assert job.wait(timeout_s=60).restarts == 0
            told.clear()
            cluster.processes[0].kill()
            await_that(lambda: tells("listens again"), "the server, whose log was deleted")
            values = job.values()
            assert (values.step, job.refresh().state) == (job.job.progress.step, JobState.SUCCEEDED)
        assert [process.exit_code for process in cluster.processes] == [None] * 3
    assert (state / "logs" / "server.log").exists()


def trained(client: weft.Client, rows: Path) -> weft.JobHandle:
    """A job that runs until it is stopped."""
    np.savez(rows, x=np.ones((64, 4), np.float32), y=np.zeros(64, np.int64))
    loss = weft.nn.cross_entropy(
        weft.nn.Linear(4, 3)(weft.input("x", ("batch", 4))), weft.input("y", ("batch",), "int64")
    )
    return client.submit(loss, data=weft.numpy_data(rows), steps=10**7, batch_size=16, workers=1, shards=1)


def weft_(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `weft` in that folder to its end. Output goes to files, since a pipe would stay open for what it leaves."""
    command = [sys.executable, "-c", "from weft.cli import main; main()", *arguments]
    with open(folder / "out", "w+") as out, open(folder / "err", "w+") as err:
        done = subprocess.run(command, stdout=out, stderr=err, cwd=folder, timeout=100, check=False)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, done.returncode, out.read(), err.read())


def test_weft_up_in_the_background_starts_what_ends_again_and_ends_with_weft_down_leaving_none(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    state = folder / ".weft"
    arguments = ["up", "--detach", "--workers", "1", "--shards", "1", "--port"]
    up = weft_(folder, *arguments, "0")
    try:
        assert up.returncode == 0, up.stderr
        greeting, *lines = up.stdout.splitlines()
        assert greeting.startswith("weft is up at http://127.0.0.1:")
        assert greeting.endswith(": 1 worker, 1 shard")
        url = greeting.split(" at ")[1].split(": ")[0]
        assert lines[2:4] == ["Next:", f"  export WEFT_URL={url}"]
        assert lines[-1].endswith("down` stops everything.")
        first = pids(url)
        process = int((state / "up.lock").read_text())
        port = url.rpartition(":")[2]
        for other, told in (
            ([], f"a cluster runs in {state} already, started by process {process}; `"),
            (["--directory", "other"], f"port {port} of 127.0.0.1 is in use; "),
        ):
            second = weft_(folder, *arguments, port, *other)
            assert second.returncode == 1
            assert second.stderr.startswith(f"weft: {told}")
            assert second.stderr.count("\n") == 1
        kill(server_pid(state))
        log = state / "logs" / "up.log"
        await_that(lambda: f"the server listens again at {url}" in log.read_text(), "another server")
        await_that(lambda: pids(url) == first, "the agents to find the server again")
        server = server_pid(state)
        remove(state)
        told = f"the directory {state} was deleted. {DELETED}"
        await_that(lambda: log.exists() and told in log.read_text(), "the directory")
        await_that((state / "server.json").exists, "the server's address")
        assert json.loads((state / "server.json").read_text()) == {"url": url, "pid": server}
        assert int((state / "up.lock").read_text()) == process
        kill(first["worker-0"])
        await_that(lambda: pids(url).get("worker-0") not in {None, first["worker-0"]}, "another worker-0")
        assert "worker-0 ended with signal SIGKILL" in log.read_text()
        assert (state / "logs" / "server.log").stat().st_size
        # The server, two agents, and what each of them forks its children from.
        await_that(lambda: len(descendants(process)) == 5, "five processes")
        below = descendants(process)
    finally:
        down = weft_(folder, "down")
    assert (down.returncode, down.stderr) == (0, "")
    assert down.stdout == f"stopping\nthe cluster in {state} has ended\n"
    await_that(lambda: not any(alive(pid) for pid in {process, *below}), "all of its processes to end")
    again = weft_(folder, "down", "-o", "json")
    assert json.loads(again.stdout) == {"directory": str(state), "ended": None}


def test_what_a_full_disk_does_not_log_is_told_on_the_terminal() -> None:
    reader, writer = pty.openpty()
    with open("/dev/full", "w") as log:
        up._print(Console(file=log), Message("worker-0 ended\x1b[2J"), os.ttyname(writer))
        with suppress(OSError):
            log.close()  # what was not written is lost
    assert os.read(reader, 100).startswith(b"weft: worker-0 ended\\u001b[2J\r")
    os.close(reader)
    os.close(writer)


def test_weft_up_in_the_background_tells_why_it_cannot_start(tmp_path: Path) -> None:
    (tmp_path / ".weft").touch()
    up = weft_(tmp_path, "up", "--detach")
    assert up.returncode == 1
    assert up.stderr == f"weft: the directory {tmp_path.resolve()}/.weft cannot be used: File exists\n"


def test_weft_down_leaves_a_cluster_alone_that_a_program_started(tmp_path: Path) -> None:
    with hold_directory(tmp_path):
        down = weft_(tmp_path, "down", "--directory", ".")
    assert down.returncode == 1
    assert f"is not of `weft up`: end process {os.getpid()}, which started it" in down.stderr


def remove(directory: Path) -> None:
    """Deletes the directory, again where its cluster was quick to make it anew, or to take a file of it away."""

    def is_removed() -> bool:
        try:
            shutil.rmtree(directory)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTEMPTY}:
                raise
            return not directory.exists()
        return True

    await_that(is_removed, "the directory to be removed")


def server_pid(state: Path) -> int:
    return int(json.loads((state / "server.json").read_text())["pid"])


def pids(url: str) -> dict[str, int]:
    """The agents that live; none where the server is away."""
    try:
        with weft.Client(url) as client:
            return {agent.name: agent.pid for agent in client.agents() if agent.state is AgentState.ALIVE}
    except weft.WeftError:
        return {}


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    await_that(lambda: not alive(pid), f"process {pid} to end")
