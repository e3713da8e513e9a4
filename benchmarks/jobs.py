"""Small jobs one after the other, and many at once: how long each takes from submit to its end, and what stays behind.

    python benchmarks/jobs.py [--jobs 100] [--at-once 16] [--rounds 8]

A cluster of this machine's runs them; each has one pass of 20 small steps, two workers where they run one after the
other, and one worker each where they run at once. Before the first job that is measured, every agent has had one. What
stays is counted below the cluster's processes before it and after the last one: processes, descriptors, mappings and
resident memory. The processor's time is that of all these processes, the jobs' own included.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import weft
from weft import nn

STEPS, BATCH, FEATURES, CLASSES = 20, 32, 8, 4
WARM_UP = 3
"""Rounds in which every agent gets a job."""
DEADLINE_S = 300.0
SETTLED_S = 10.0
"""For processes that end to be gone."""
CONNECTION_S = 6.0
"""For an HTTP connection that nobody uses to be closed: it is after 5 s."""


def processes(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended
            for child in path.read_text().split():
                yield from processes(int(child))


class Held(NamedTuple):
    """What a cluster's processes and all below them hold together."""

    processes: int
    descriptors: int
    mappings: int
    resident_bytes: int


def held(cluster: weft.Cluster) -> Held:
    """What they hold now; what ends meanwhile is left out."""
    found = []
    for pid in [pid for process in cluster.processes for pid in processes(process.pid)]:
        with contextlib.suppress(OSError):
            process = Path(f"/proc/{pid}")
            descriptors, mappings = len(os.listdir(process / "fd")), (process / "maps").read_text().count("\n")
            resident = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            found.append(Held(1, descriptors, mappings, resident))
    return Held(*map(sum, zip(*found, strict=True)))


def processor_s(cluster: weft.Cluster) -> float:
    """Seconds of the processor that the cluster's processes have had so far, with all that have ended below them."""
    ticks = 0
    for pid in [pid for process in cluster.processes for pid in processes(process.pid)]:
        with contextlib.suppress(OSError):  # it has ended
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def settled(cluster: weft.Cluster) -> Held:
    """The same once processes that end are gone, and connections closed over which nothing was said lately."""
    idle = 2 * len(cluster.processes) - 1  # Every agent has a forkserver.
    until = time.monotonic() + SETTLED_S
    while sum(1 for each in cluster.processes for _ in processes(each.pid)) > idle:
        if time.monotonic() >= until:
            raise RuntimeError(f"there are more than {idle} processes {SETTLED_S:g} s after the last job")
        time.sleep(0.05)
    time.sleep(CONNECTION_S)
    return held(cluster)


def write_data(folder: Path) -> None:
    """What the jobs train on."""
    draw, rows = np.random.default_rng(0), STEPS * BATCH
    x = draw.normal(size=(rows, FEATURES)).astype(np.float32)
    np.savez(folder / "points.npz", x=x, y=draw.integers(0, CLASSES, rows))


def submit(client: weft.Client, workers: int) -> weft.JobHandle:
    """A job of 20 steps of an MLP."""
    x, y = weft.input("x", ("batch", FEATURES)), weft.input("y", ("batch",), "int64")
    net = nn.Sequential(nn.Linear(FEATURES, 16, name="hidden"), nn.relu, nn.Linear(16, CLASSES, name="scores"))
    loss = nn.cross_entropy(net(x), y, name="loss")
    return client.submit(
        loss,
        data=weft.numpy_data("points.npz"),
        batch_size=BATCH,
        optimizer=weft.SGD(lr=0.1),
        epochs=1,
        workers=workers,
        shards=2,
    )


def seconds(handle: weft.JobHandle) -> float:
    """From submit to its end, as the server has them."""
    job = handle.wait(DEADLINE_S)
    if job.state != "succeeded" or job.ended_at is None:
        raise RuntimeError(f"job {job.id} has {job.state}: {job.reason}")
    return (job.ended_at - job.created_at).total_seconds()


def at_once(client: weft.Client, count: int, workers: int) -> list[float]:
    """What each of so many jobs takes."""
    return [seconds(one) for one in [submit(client, workers) for _ in range(count)]]


def measure(cluster: weft.Cluster, workers: int, count: int, rounds: int) -> str:
    """What `rounds` times `count` jobs at once take, each with so many workers, and what stays of them."""
    with cluster.client() as client:
        for _ in range(WARM_UP):
            at_once(client, count, workers)
        before, had_s = settled(cluster), processor_s(cluster)
        took = sorted(second for _ in range(rounds) for second in at_once(client, count, workers))
        cost_s, after = (processor_s(cluster) - had_s) / len(took), settled(cluster)
    counts = [f"{now - was:+d} {name}" for name, now, was in zip(Held._fields[:3], after, before, strict=False)]
    grown = after.resident_bytes - before.resident_bytes
    median, worst = statistics.median(took), took[int(0.9 * (len(took) - 1))]
    times = f"median {median:.2f} s, 90 % within {worst:.2f} s, {cost_s:.2f} s of the processor each"
    return f"{times}; stays: {', '.join(counts)}, {grown / 2**20:+.1f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100, help="one after the other")
    parser.add_argument("--at-once", type=int, default=16, help="at once, each with a worker")
    parser.add_argument("--rounds", type=int, default=8, help="of those at once")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        if given.jobs:
            with weft.Cluster(workers=2, shards=2, data_root=folder) as cluster:
                print(f"{given.jobs} one after the other: {measure(cluster, 2, 1, given.jobs)}", flush=True)
        if given.at_once:
            with weft.Cluster(workers=given.at_once, shards=2, data_root=folder) as cluster:
                told = measure(cluster, 1, given.at_once, given.rounds)
                print(f"{given.rounds} times {given.at_once} at once: {told}", flush=True)


if __name__ == "__main__":
    main()
