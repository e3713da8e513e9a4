"""Small jobs one after the other, and many at once: how long each takes from submit to its end, and what stays behind.

    python benchmarks/jobs.py [--jobs 100] [--at-once 16]

A cluster of this machine's runs them; each has one pass of 20 small steps, two workers where they run one after the
other, and one worker each where they run at once. What stays is counted below the cluster's processes before the first
measured job and after the last one: processes, descriptors, mappings and resident memory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import weft
from weft import nn

STEPS, BATCH, FEATURES, CLASSES = 20, 32, 8, 4
WARM_UP = 10
DEADLINE_S = 300.0
SETTLED_S = 10.0
"""For processes that end to be gone."""


def processes(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            yield from processes(int(child))


def held(cluster: weft.Cluster) -> tuple[int, int, int, int]:
    """Processes below the cluster's, with their descriptors, mappings and resident bytes."""
    found = [pid for process in cluster.processes for pid in processes(process.pid)]
    descriptors = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in found)
    mappings = sum(Path(f"/proc/{pid}/maps").read_text().count("\n") for pid in found)
    resident = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in found) * 4096
    return len(found), descriptors, mappings, resident


def settled(cluster: weft.Cluster, processes_before: int) -> tuple[int, int, int, int]:
    """The same once processes that end are gone."""
    until = time.monotonic() + SETTLED_S
    while (found := held(cluster))[0] > processes_before and time.monotonic() < until:
        time.sleep(0.05)
    return found


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


def told(what: str, took: list[float], before: tuple[int, ...], after: tuple[int, ...]) -> str:
    stays = ", ".join(
        f"{later - earlier:+d} {name}"
        for name, earlier, later in zip(("processes", "descriptors", "mappings"), before, after, strict=False)
    )
    median, worst = statistics.median(took), sorted(took)[int(0.9 * (len(took) - 1))]
    memory = (after[3] - before[3]) / 2**20
    return f"{what}: median {median:.2f} s, 90 % within {worst:.2f} s; stays: {stays}, {memory:+.1f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100, help="one after the other")
    parser.add_argument("--at-once", type=int, default=16, help="at once, each with a worker")
    given = parser.parse_args()
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        rows = STEPS * BATCH
        x = draw.normal(size=(rows, FEATURES)).astype(np.float32)
        np.savez(Path(folder) / "points.npz", x=x, y=draw.integers(0, CLASSES, rows))
        for workers, count, what in ((2, given.jobs, "one after the other"), (given.at_once, given.at_once, "at once")):
            if not count:
                continue
            with weft.Cluster(workers=workers, shards=2, data_root=folder) as cluster, cluster.client() as client:
                for _ in range(WARM_UP):
                    seconds(submit(client, min(workers, 2)))
                idle = 2 * len(cluster.processes) - 1  # Every agent has a forkserver.
                before = settled(cluster, idle)
                if what == "at once":
                    took = [seconds(one) for one in [submit(client, 1) for _ in range(count)]]
                else:
                    took = [seconds(submit(client, 2)) for _ in range(count)]
                print(told(f"{count} {what}", took, before, settled(cluster, before[0])), flush=True)


if __name__ == "__main__":
    main()
