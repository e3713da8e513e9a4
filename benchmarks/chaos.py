"""Kills processes of jobs with SIGKILL, by seeded plans, and compares what the jobs come to, bit by bit.

    python benchmarks/chaos.py [--runs N] [--seed S] [--case NAME ...]

Each run submits one job to a cluster of this machine and carries out a plan. At one or two steps, drawn from the seed,
it kills one of: the server, the daemon of a worker or shard, the process that serves the job on one of them. What died
is started again. The job goes on from its newest snapshot, and has to succeed with the parameters and the rule's state
of an undisturbed one. The exit code is 1 where any differs.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft import nn
from weft.http import Retry

STEPS = 400
ROWS, WIDTH, IDS = 2048, 20, 500
SNAPSHOT_S = 0.3
WAIT_S = 120.0
POLL_S = 0.02
PATIENT = Retry(attempts=20)
"""A server that was killed takes seconds to come back."""
OPTIONS: dict[str, dict[str, Any]] = {
    "dense": {"rule": weft.Sgd(lr=0.05, momentum=0.9)},
    "adam": {"rule": weft.Adam()},
    "table": {"rule": weft.Adagrad(lr=0.05)},
    "2bit": {
        "rule": weft.Sgd(lr=0.05, momentum=0.9),
        "compression": {"gradients": {"kind": "2bit", "threshold": 0.01}},
    },
    "workers": {
        "rule": weft.Adam(),
        "update": "workers",
        "compression": {
            "gradients": {"kind": "2bit", "threshold": 0.01},
            "merged": {"kind": "2bit", "threshold": 0.01},
        },
    },
    "float16": {"rule": weft.Adam(), "precision": "float16"},
    "clipped": {"rule": weft.Adam(), "clip_norm": 0.5},
    "one worker": {"rule": weft.Adam(), "workers": 1, "shards": 0},
}
VICTIMS = ("server", "worker daemon", "shard daemon", "worker process", "shard process")


def loss_of(case: str) -> weft.Expression:
    label = weft.input("y", ("batch",), "int64")
    net = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 2))
    if case == "table":
        net = nn.Sequential(nn.Embedding(IDS, 8), nn.Flatten(), nn.Linear(32, 2))
        return nn.cross_entropy(net(weft.input("ids", ("batch", 4), "int64")), label)
    return nn.cross_entropy(net(weft.input("x", ("batch", WIDTH))), label)


def write_data(path: Path) -> None:
    random_ = np.random.default_rng(0)
    x = random_.standard_normal((ROWS, WIDTH), dtype=np.float32)
    np.savez(path, x=x, ids=random_.integers(0, IDS, (ROWS, 4)), y=(x[:, 0] * x[:, 1] > 0).astype(np.int64))


def children(pid: int) -> list[int]:
    """Below the daemon: its forkserver's children, the newest last."""
    found: list[int] = []
    for one in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, one.read_text().split()):
            found += [child, *children(child)]
    return sorted(found)


def victim_of(kind: str, cluster: weft.Cluster, client: weft.Client, job: str, choose: random.Random) -> int | None:
    """The process to kill; None where the job has none of that kind now."""
    if kind == "server":
        return cluster.processes[0].pid
    role, what = kind.split()
    daemons = [agent.pid for agent in client.agents() if agent.kind == role and job in agent.jobs]
    if not daemons:
        return None
    pid = choose.choice(daemons)
    below = children(pid)
    return pid if what == "daemon" else below[-1] if len(below) > 1 else None


def await_death(cluster: weft.Cluster, pid: int) -> None:
    """Until a daemon that was killed can be started again; of another process nobody waits for the end."""
    daemon = next((process for process in cluster.processes if process.pid == pid), None)
    while daemon is not None and daemon.exit_code is None:
        time.sleep(POLL_S)


def revive(cluster: weft.Cluster) -> None:
    """Starts again what died."""
    for process in cluster.ended():
        cluster.restart(process.name)


def await_step(cluster: weft.Cluster, job: weft.JobHandle, step: int) -> None:
    """Until the job is so far, or has ended. What died is started again meanwhile."""
    end = time.monotonic() + WAIT_S
    while not job.refresh().state.is_terminal and job.job.progress.step < step and time.monotonic() < end:
        time.sleep(POLL_S)
        revive(cluster)


def disturbed(cluster: weft.Cluster, client: weft.Client, job: weft.JobHandle, choose: random.Random) -> Iterator[str]:
    """Carries a plan out while the job runs; what was killed, and when."""
    for at in sorted(choose.sample(range(1, STEPS * 3 // 4), choose.choice((1, 2)))):
        kind = choose.choice(VICTIMS)
        await_step(cluster, job, at)
        pid = victim_of(kind, cluster, client, job.id, choose)
        if pid is None or job.state.is_terminal:
            yield f"no {kind} at step {at}"
            continue
        os.kill(pid, signal.SIGKILL)
        yield f"{kind} at step {job.job.progress.step}"
        await_death(cluster, pid)
        revive(cluster)
    await_step(cluster, job, STEPS + 1)


def run(client: weft.Client, case: str) -> weft.JobHandle:
    options = {"workers": 2, "shards": 2, **OPTIONS[case]}
    names = {"ids": "ids", "y": "y"} if case == "table" else {"x": "x", "y": "y"}
    data = weft.numpy_data("data.npz", columns=names)
    return client.submit(
        loss_of(case), data=data, steps=STEPS, keep_state=True, max_restarts=20, snapshot_every_s=SNAPSHOT_S, **options
    )


def bits(job: weft.JobHandle) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in job.values(state=True).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", action="append", choices=list(OPTIONS), help="these alone (repeatable)")
    arguments = parser.parse_args()
    cases = arguments.case or list(OPTIONS)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder) / "data.npz")
        with (
            weft.Cluster(workers=3, shards=3, data_root=Path(folder)) as cluster,
            weft.Client(cluster.url, retry=PATIENT) as client,
        ):
            expected: dict[str, dict[str, bytes]] = {}
            for case in cases:
                job = run(client, case)
                job.wait(timeout_s=WAIT_S)
                expected[case] = bits(job)
            print(f"{'seed':>5}  {'case':<11} {'restarts':>8} {'seconds':>8}  {'bits':<7} killed")
            for number in range(arguments.runs):
                seed, case = arguments.seed + number, cases[number % len(cases)]
                begun, job = time.monotonic(), run(client, case)
                killed = list(disturbed(cluster, client, job, random.Random(seed)))
                job.wait(timeout_s=WAIT_S)
                alike = bits(job) == expected[case]
                wrong += not alike
                took_s, told = time.monotonic() - begun, "equal" if alike else "DIFFER"
                print(
                    f"{seed:>5}  {case:<11} {job.refresh().restarts:>8} {took_s:>8.1f}  {told:<7} {', '.join(killed)}",
                    flush=True,
                )
    print(f"{arguments.runs - wrong} of {arguments.runs} came to the bits of an undisturbed job")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
