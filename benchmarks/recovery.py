"""How long a job stands still when a process of it is killed: from its last step before to its first step after.

    python benchmarks/recovery.py [--rounds N] [--size MB ...]

Two workers and two shards on this machine train a net with Adam, of so many megabytes of parameters, and evaluate on a
few rows after each step, which tells when the step was. The process that serves the job on a worker is killed, and in
another job that of a shard. A worker's slot is taken over. After a shard the job goes on from a snapshot, which is
taken each second here, and does steps again: that replay is a column of its own.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from pathlib import Path

import numpy as np

import weft
from weft import nn
from weft.api.event import EventBody, LogLine, MetricTaken, StateChanged
from weft.api.lifecycle import JobState

ROWS, BATCH, EVALUATED = 512, 64, 8
SIZES_MB = (0.3, 10, 100, 400)
SNAPSHOT_S = 1.0
BEFORE, AFTER = 10, 10
"""Steps that are awaited before a process is killed, and once another is in its place."""


def width_of(megabytes: float) -> int:
    """Of two hidden layers that have about so many bytes together."""
    return max(int((megabytes * 1e6 / 4 / 2) ** 0.5), 16)


def submitted(client: weft.Client, width: int) -> weft.JobHandle:
    hidden = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    net = nn.Sequential(*hidden, nn.Linear(width, 2))
    loss = nn.cross_entropy(net(weft.input("x", ("batch", 64))), weft.input("y", ("batch",), "int64"))
    data = weft.numpy_data("data.npz", columns={"x": "x", "y": "y"}, evaluate=(ROWS - EVALUATED, ROWS))
    options = {"workers": 2, "shards": 2, "optimizer": weft.Adam()}
    recovery = weft.Recovery(snapshot_every_s=SNAPSHOT_S, max_restarts=5)
    return client.submit(
        loss,
        metrics={"loss": loss},
        data=data,
        batch_size=BATCH,
        steps=100_000,
        evaluate_every=1,
        recovery=recovery,
        **options,
    )


def children(pid: int) -> list[int]:
    """Below a daemon: its forkserver's children, the newest last."""
    found: list[int] = []
    for one in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, one.read_text().split()):
            found += [child, *children(child)]
    return sorted(found)


def process_of(client: weft.Client, job: str, kind: str) -> int | None:
    """The process that serves the job on the first worker or shard of it; None where there is none now."""
    for agent in client.agents():
        if agent.kind == kind and job in agent.jobs and len(below := children(agent.pid)) > 1:
            return below[-1]
    return None


def is_running(body: EventBody) -> bool:
    """Whether another process is in the place of the one that was killed."""
    if isinstance(body, StateChanged):
        return body.state is JobState.RUNNING
    return isinstance(body, LogLine) and "takes over" in body.message


def stood_still(client: weft.Client, width: int, victim: str) -> tuple[float, float, float, int]:
    """(a step, seconds until another process was in its place, seconds between the last new step before and the first
    one after, steps done again)."""
    job = submitted(client, width)
    steps: list[float] = []
    killed = ran = None
    again = after = 0
    for event in job.events():
        at, body = event.at.timestamp(), event.body
        if isinstance(body, MetricTaken) and body.split == "evaluate":
            steps.append(at)
            after += ran is not None
            enough = len(steps) > BEFORE and (victim == "worker" or job.refresh().snapshot is not None)
            pid = process_of(client, job.id, victim) if enough and killed is None else None
            if pid is not None:
                killed = time.time()
                os.kill(pid, signal.SIGKILL)
            if after == AFTER and killed is not None and ran is not None:
                job.cancel()
                gaps = np.diff([one for one in steps if one > killed - SNAPSHOT_S])
                return float(np.median(np.diff(steps))), ran - killed, float(gaps.max()), again
        elif killed is not None and is_running(body):
            ran = at
        elif killed is not None and isinstance(body, LogLine) and "goes on from step" in body.message:
            again = int(body.message.split(": ")[1].split()[0].replace("no", "0"))
    raise RuntimeError(f"job {job.id} ended: {job.refresh().reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=float, action="append", help="megabytes of parameters (repeatable)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        x = np.random.default_rng(0).standard_normal((ROWS, 64), dtype=np.float32)
        np.savez(Path(folder) / "data.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
        with (
            weft.Cluster(workers=2, shards=2, data_root=Path(folder), directory=Path(folder) / "weft") as cluster,
            weft.Client(cluster.url) as client,
        ):
            heads = "a worker: no new step for", "a shard: runs again after", "no new step for", "done again"
            print(f"| parameters | a step | {' | '.join(heads)} |")
            print("|---|---|---|---|---|---|")
            for size in arguments.size or SIZES_MB:
                width = width_of(size)
                found = {
                    victim: [stood_still(client, width, victim) for _ in range(arguments.rounds)]
                    for victim in ("worker", "shard")
                }
                worker, shard = (np.median(np.array(rows), axis=0) for rows in found.values())
                seconds = f"{worker[0]:.2f} s | {worker[2]:.1f} s | {shard[1]:.1f} s | {shard[2]:.1f} s"
                print(f"| {size:g} MB | {seconds} | {shard[3]:.0f} steps |", flush=True)


if __name__ == "__main__":
    main()
