"""Freezes processes, cuts links, steps clocks and fills disks under jobs; compares what the jobs come to, bit by bit.

    python benchmarks/partitions.py [--seconds S] [--case TEXT ...] [--faketime LIBRARY]

Each case submits one job and disturbs it once, for `--seconds` (20). The job has to succeed with the parameters and the
rule's state of an undisturbed one, and without a restart where nothing died. The table says how much longer it took.
Links are cut between network namespaces and disks are small tmpfs, so it is run as root. Clocks are stepped by
libfaketime, of which `--faketime` names the library. The exit code is 1 where any case fails.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from chaos import bits, children

import weft
from weft import nn
from weft.api.event import LogLine
from weft.http import Retry
from weft.parameter_file import save_values

STEPS, ROWS, HELD_OUT, WIDTH = 1500, 4096, 200_000, 20
WAIT_S = 240.0
POLL_S = 0.02
TURNED_UP_S = 60.0
PATIENT = Retry(attempts=60)
"""A server that is frozen or cut off does not answer for a while."""


@dataclass
class Place:
    """A cluster in which cases run, one job after the other."""

    client: weft.Client
    server: int
    """The server's process id."""
    folder: Path
    links: dict[str, str] = field(default_factory=dict)
    """Bridges by what they join: `control` agents and server, `data` workers and shards."""
    cluster: weft.Cluster | None = None
    first: dict[str, Any] = field(default_factory=dict)
    """The parameters of the first job."""

    def daemons(self, job: weft.JobHandle, kind: str | None = None) -> list[int]:
        agents = [agent for agent in self.client.agents() if agent.state == "alive"]
        return [each.pid for each in agents if job.id in each.jobs and kind in {None, each.kind}]


Disturb = Callable[[Place, weft.JobHandle, float], None]


@dataclass(frozen=True)
class Case:
    name: str
    place: str
    disturb: Disturb
    at: int | str = STEPS // 3
    """The step at which it is disturbed, or the state; `submitted`: a second before it is."""
    given: bool = False
    """Whether the job begins with given values, which its keeper brings from the server."""
    restarts: int = 0
    says: str = ""
    """What stands in the job's log then."""


# --- The job ----------------------------------------------------------------------------------------------------------


def loss() -> tuple[weft.Expression, weft.Expression]:
    label, net = weft.input("y", ("batch",), "int64"), nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 2))
    logits = net(weft.input("x", ("batch", WIDTH)))
    return nn.cross_entropy(logits, label), nn.accuracy(logits, label)


def write_data(path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((ROWS + HELD_OUT, WIDTH), dtype=np.float32)
    np.savez(path, x=x, y=(x[:, 0] * x[:, 1] > 0).astype(np.int64))


def submit(place: Place, *, given: bool = False) -> weft.JobHandle:
    trained, accuracy = loss()
    run: dict[str, Any] = {"workers": 2, "shards": 2, "steps": STEPS, "optimizer": weft.Adam()}
    data = weft.numpy_data("data.npz", columns={"x": "x", "y": "y"}, evaluate=(ROWS, ROWS + HELD_OUT))
    run |= {"data": data, "metrics": {"accuracy": accuracy}, "evaluate_every": STEPS}
    run["recovery"] = weft.Recovery(keep_state=True, snapshot_every_s=1.0)
    if given:
        draw = np.random.default_rng(1)
        shapes = {name: np.shape(value) for name, value in place.first.items()}
        path = place.folder / "given.safetensors"
        save_values({name: draw.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}, path)
        run["init_from"] = path
    return place.client.submit(trained, **run)


def await_point(job: weft.JobHandle, at: int | str) -> None:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end and not job.refresh().state.is_terminal:
        if job.state == at or (isinstance(at, int) and job.job.progress.step >= at):
            return
        time.sleep(POLL_S)
    raise SystemExit(f"job {job.id} did not come to {at}: it is {job.state}, {job.job.reason}")


# --- Freezing ---------------------------------------------------------------------------------------------------------


def frozen(pids: Sequence[int], seconds: float) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)


def child_of(daemon: int) -> int:
    """The process that serves the job; the other one is the forkserver, its parent."""
    return children(daemon)[-1]


def freeze_child(kind: str) -> Disturb:
    return lambda place, job, s: frozen([child_of(place.daemons(job, kind)[0])], s)


def freeze_children(place: Place, job: weft.JobHandle, seconds: float) -> None:
    frozen([child_of(pid) for pid in place.daemons(job)], seconds)


def freeze_daemon(kind: str) -> Disturb:
    return lambda place, job, s: frozen(place.daemons(job, kind)[:1], s)


def freeze_agents(place: Place, job: weft.JobHandle, seconds: float) -> None:
    frozen([pid for daemon in place.daemons(job) for pid in (daemon, *children(daemon))], seconds)


def freeze_server(place: Place, job: weft.JobHandle, seconds: float) -> None:
    frozen([place.server], seconds)


def freeze_all(place: Place, job: weft.JobHandle, seconds: float) -> None:
    frozen([place.server, *(pid for daemon in place.daemons(job) for pid in (daemon, *children(daemon)))], seconds)


def kill_daemon(kind: str, *, told: bool) -> Disturb:
    """`told`: the server hears of it from who started the daemon, as it does from `weft up`."""

    def kill(place: Place, job: weft.JobHandle, seconds: float) -> None:
        os.kill(place.daemons(job, kind)[0], signal.SIGKILL)
        assert place.cluster is not None
        while not told and not job.refresh().restarts:
            time.sleep(POLL_S)
        while not (ended := place.cluster.ended()):
            time.sleep(POLL_S)
        for process in ended:
            place.cluster.restart(process.name)

    return kill


# --- Cutting links ----------------------------------------------------------------------------------------------------


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def cut(*which: str) -> Disturb:
    def disturb(place: Place, job: weft.JobHandle, seconds: float) -> None:
        for name in which:
            ip("link", "set", place.links[name], "down")
        time.sleep(seconds)
        for name in which:
            ip("link", "set", place.links[name], "up")

    return disturb


@contextlib.contextmanager
def networks(names: Sequence[str]) -> Iterator[dict[str, str]]:
    """A network namespace for each name, on two bridges: 10.77.1.N and 10.77.2.N. The bridges by name."""
    tag = secrets.token_hex(2)
    bridges = {"control": f"wc{tag}", "data": f"wd{tag}"}
    try:
        for number, bridge in enumerate(bridges.values(), 1):
            ip("link", "add", bridge, "type", "bridge")
            ip("link", "set", bridge, "up")
            ip("addr", "add", f"10.77.{number}.254/24", "dev", bridge)
        for host, name in enumerate(names, 1):
            space = f"{tag}-{name}"
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            for number, bridge in enumerate(bridges.values(), 1):
                end = f"w{tag}{host}{number}"
                ip("link", "add", end, "type", "veth", "peer", "name", f"e{number}", "netns", space)
                ip("link", "set", end, "master", bridge, "up")
                ip("-n", space, "addr", "add", f"10.77.{number}.{host}/24", "dev", f"e{number}")
                ip("-n", space, "link", "set", f"e{number}", "up")
        yield {**bridges, "tag": tag}
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", f"{tag}-{name}"], check=False)
        for bridge in bridges.values():
            subprocess.run(["ip", "link", "del", bridge], check=False)


@contextlib.contextmanager
def spread(folder: Path) -> Iterator[Place]:
    """Every daemon in a network namespace of its own; the client is in this one, and is cut off with the agents."""
    names = ["server", "worker-0", "worker-1", "worker-2", "shard-0", "shard-1", "shard-2"]
    token = secrets.token_hex(16)
    environment = {**os.environ, "WEFT_SERVER_TOKEN": token, "WEFT_WORKER_TOKEN": token, "WEFT_SHARD_TOKEN": token}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with networks(names) as links, contextlib.ExitStack() as stack:
        tag, url, started = links.pop("tag"), "http://10.77.1.1:8470", list[subprocess.Popen[bytes]]()

        def start(name: str, module: str, *arguments: str) -> int:
            command = ["ip", "netns", "exec", f"{tag}-{name}", sys.executable, "-m", module, *arguments]
            log = stack.enter_context((folder / f"{name}.log").open("ab"))
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            started.append(process)
            return process.pid

        directory = ["--directory", str(folder / "server"), "--data-root", str(folder)]
        server = start("server", "weft_server", "--host", "10.77.1.1", "--port", "8470", *directory)
        for host, name in enumerate(names[1:], 2):
            named = ["--server", url, "--name", name]
            if name.startswith("shard"):
                bound = f"tcp://10.77.2.{host}:8471-8490"
                start(name, "weft_kvstore", *named, "--bind", bound)
            else:
                start(name, "weft_worker", *named, "--data-root", str(folder))
        client = stack.enter_context(weft.Client(url, token=token, timeout_s=5.0, retry=PATIENT))
        while sum(agent.state == "alive" for agent in client.agents()) < len(names) - 1:
            if any(process.poll() is not None for process in started):
                raise SystemExit(f"a daemon has ended; logs are in {folder}")
            time.sleep(POLL_S)
        yield Place(client, server, folder, links=links)


# --- Clocks -----------------------------------------------------------------------------------------------------------


def stepped(*hours: int) -> Disturb:
    def disturb(place: Place, job: weft.JobHandle, seconds: float) -> None:
        for each in hours:
            (place.folder / "clock").write_text(f"{each * 3600:+d}\n")
            time.sleep(seconds / len(hours))

    return disturb


# --- Disks ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def disk(path: Path, megabytes: int) -> Iterator[Path]:
    path.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


@contextlib.contextmanager
def full(path: Path, left: int = 0) -> Iterator[None]:
    """No more than `left` bytes can be written there."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    os.truncate(filler, filler.stat().st_size - left)
    try:
        yield
    finally:
        filler.unlink()


def filled(name: str, left: int = 0, share: float = 1.0) -> Disturb:
    def disturb(place: Place, job: weft.JobHandle, seconds: float) -> None:
        with full(place.folder / name, left):
            time.sleep(share * seconds)

    return disturb


def refused_upload(place: Place, job: weft.JobHandle, seconds: float) -> None:
    """A client is told that there is no room, and brings the same values later."""
    values = {"w": np.zeros((512, 512), np.float32)}
    with full(place.folder / "weft"):
        told = ""
        try:
            place.client.upload_values(values)
        except weft.WeftError as error:
            told = str(error)
        if "No space left" not in told:
            raise SystemExit(f"a full disk took an upload, or did not say so: {told}")
    place.client.upload_values(values)


def filled_and_frozen(place: Place, job: weft.JobHandle, seconds: float) -> None:
    """The keeper stands still with its final upload under way: the disk is full before."""
    with full(place.folder / "weft"):
        keeper = child_of(place.daemons(job, "worker")[0])
        time.sleep(seconds / 4)
        os.kill(keeper, signal.SIGSTOP)
        time.sleep(seconds / 4)
    time.sleep(seconds / 2)
    os.kill(keeper, signal.SIGCONT)


# --- The cases --------------------------------------------------------------------------------------------------------

CASES = (
    Case("a worker's process is frozen", "one host", freeze_child("worker")),
    Case("a shard's process is frozen", "one host", freeze_child("shard")),
    Case("all processes of the job are frozen", "one host", freeze_children),
    Case("a worker's daemon is frozen", "one host", freeze_daemon("worker"), says="is heard again after"),
    Case("a shard's daemon is frozen", "one host", freeze_daemon("shard"), says="is heard again after"),
    Case("all daemons and processes are frozen", "one host", freeze_agents, says="is heard again after"),
    Case("the server is frozen", "one host", freeze_server),
    Case("everything is frozen", "one host", freeze_all),
    Case("a worker's process is frozen in the last evaluation", "one host", freeze_child("worker"), at=STEPS),
    Case(
        "all daemons and processes are frozen while it starts",
        "one host",
        freeze_agents,
        at="starting",
        says="is heard again after",
    ),
    Case("a worker's daemon is killed", "one host", kill_daemon("worker", told=True), restarts=1),
    Case("a shard's daemon is killed", "one host", kill_daemon("shard", told=True), restarts=1),
    Case("a worker's daemon is killed, and nobody tells", "one host", kill_daemon("worker", told=False), restarts=1),
    Case("agents are cut off from the server", "networks", cut("control"), says="is heard again after"),
    Case("workers are cut off from shards", "networks", cut("data")),
    Case("everything is cut off", "networks", cut("control", "data"), says="is heard again after"),
    Case("agents are cut off while it ends", "networks", cut("control"), at=STEPS, says="is heard again after"),
    Case("the server's clock steps by an hour, and back by two", "clocks", stepped(1, -1)),
    Case("no room for the database, logs and results", "small disks", filled("weft")),
    Case("no room for the database when the job ends", "small disks", filled("weft"), at=STEPS - 50),
    Case("the keeper is frozen, and no room for its result", "small disks", filled_and_frozen, at=STEPS - 50),
    Case(
        "no room for snapshots", "small disks", filled("snapshots", share=0.15), at=100, says="snapshots are kept again"
    ),
    Case("no room for values that a client brings", "small disks", refused_upload),
    Case(
        "no room for an agent's temporary files",
        "small disks",
        filled("scratch", left=4096),
        at="submitted",
        given=True,
        says="given: not yet, it is tried again",
    ),
)


class ServerAlone(weft.Cluster):
    """Its server alone has the library that sets clocks: agents look at no calendar, and are slow with it."""

    def _spawn_agents(self) -> None:
        os.environ.pop("LD_PRELOAD")
        super()._spawn_agents()


@contextlib.contextmanager
def one_host(folder: Path, kind: type[weft.Cluster] = weft.Cluster) -> Iterator[Place]:
    with (
        kind(workers=3, shards=3, data_root=folder, directory=folder / "weft") as cluster,
        weft.Client(cluster.url, retry=PATIENT) as client,
    ):
        yield Place(client, cluster.processes[0].pid, folder, cluster=cluster)


@contextlib.contextmanager
def small_disks(folder: Path) -> Iterator[Place]:
    with (
        disk(folder / "weft", 24),
        disk(folder / "snapshots", 4),
        disk(folder / "scratch", 4),
        variables(WEFT_SERVER_SNAPSHOTS=str(folder / "snapshots"), TMPDIR=str(folder / "scratch")),
        one_host(folder) as place,
    ):
        yield place


@contextlib.contextmanager
def clocks(folder: Path, library: str) -> Iterator[Place]:
    clock = folder / "clock"
    clock.write_text("+0\n")
    chosen = {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_CACHE_DURATION": "1"}
    with (
        variables(**chosen, FAKETIME_DONT_FAKE_MONOTONIC="1", DONT_FAKE_MONOTONIC="1"),
        one_host(folder, ServerAlone) as place,
    ):
        yield place


@contextlib.contextmanager
def variables(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def carry_out(case: Case, place: Place, seconds: float) -> tuple[weft.JobHandle, float]:
    begun = time.monotonic()
    if case.at == "submitted":
        disturbing = threading.Thread(target=case.disturb, args=(place, None, seconds))
        disturbing.start()
        time.sleep(1.0)
        job = submit(place, given=case.given)
        disturbing.join()
    else:
        job = submit(place, given=case.given)
        await_point(job, case.at)
        case.disturb(place, job, seconds)
    job.wait(timeout_s=WAIT_S)
    return job, time.monotonic() - begun


def undisturbed(place: Place, *, given: bool) -> tuple[dict[str, bytes], float]:
    """What a job comes to, and its seconds: of the faster one of two, since the first finds nothing in the caches."""
    took: list[float] = []
    for _ in range(2):
        begun, job = time.monotonic(), submit(place, given=given)
        job.wait(timeout_s=WAIT_S)
        took.append(time.monotonic() - begun)
    place.first = place.first or job.values()
    print(f"undisturbed: {min(took):.1f} s", file=sys.stderr)
    return bits(job), min(took)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # What was started and mounted goes.
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each disturbance lasts")
    parser.add_argument("--case", action="append", help="cases whose name or place has this text (repeatable)")
    parser.add_argument("--faketime", help="libfaketime's library, for the cases of clocks")
    arguments = parser.parse_args()
    wanted = [c for c in CASES if not arguments.case or any(t in f"{c.name} {c.place}" for t in arguments.case)]
    wanted = [case for case in wanted if case.place != "clocks" or arguments.faketime]
    wrong, expected = 0, dict[bool, dict[str, bytes]]()
    print(f"| {'case':<58} | result    | restarts | bits   | s longer |")
    print(f"|{'-' * 60}|-----------|----------|--------|----------|")
    for where in dict.fromkeys(case.place for case in wanted):
        with tempfile.TemporaryDirectory(prefix="weft-partitions-") as name:
            folder = Path(name)
            write_data(folder / "data.npz")
            makers = {"one host": one_host, "networks": spread, "small disks": small_disks}
            with clocks(folder, arguments.faketime) if where == "clocks" else makers[where](folder) as place:
                alone_s: dict[bool, float] = {}
                for case in [each for each in wanted if each.place == where]:
                    for given in {False, case.given} - set(alone_s):
                        found, alone_s[given] = undisturbed(place, given=given)
                        expected.setdefault(given, found)
                        assert found == expected[given]
                    job, took_s = carry_out(case, place, arguments.seconds)
                    alike = bits(job) == expected[case.given]
                    log = [event.body.message for event in job.events() if isinstance(event.body, LogLine)]
                    unsaid = "" if any(case.says in line for line in log) else f" its log lacks {case.says!r}"
                    wrong += not (alike and job.refresh().restarts == case.restarts and not unsaid)
                    longer_s, told = took_s - alone_s[case.given], "equal" if alike else "DIFFER"
                    row = f"| {case.name:<58} | {job.state:<9} | {job.job.restarts:>8} | {told:<6} | {longer_s:>8.1f} |"
                    print(row + unsaid, flush=True)
    print(f"{len(wanted) - wrong} of {len(wanted)} cases came to the bits of an undisturbed job")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
