"""What snapshots cost: a model of 100 MB with Adam, with and without them, one after the other on this machine.

    python benchmarks/snapshots.py [--every S] [--seconds S] [--rounds N]

A snapshot is 300 MB: the parameters and both of Adam's arrays. The table has the time of a step and the time that one
snapshot adds; the last line is what that would be of the steps' time at an interval of a minute.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import weft
from weft import nn

WIDTH, HIDDEN, BATCH, ROWS = 2048, 6144, 64, 4096
MINUTE_S = 60.0


def loss() -> weft.Expression:
    net = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
    return nn.cross_entropy(net(weft.input("x", ("batch", WIDTH))), weft.input("y", ("batch",), "int64"))


def steps_in(client: weft.Client, every_s: float | None, seconds: float) -> tuple[int, int]:
    """(steps, snapshots) within so many seconds, once the job trains."""
    data = weft.numpy_data("data.npz", columns={"x": "x", "y": "y"})
    job = client.submit(
        loss(),
        data=data,
        batch_size=BATCH,
        steps=1_000_000,
        workers=1,
        shards=1,
        optimizer=weft.Adam(),
        recovery=weft.Recovery(snapshot_every_s=every_s),
    )
    while job.refresh().progress.step < 5:
        time.sleep(0.05)
    first, end, kept = job.job.progress.step, time.monotonic() + seconds, set[int]()
    while time.monotonic() < end:
        time.sleep(0.2)
        if job.refresh().snapshot is not None:
            kept.add(job.job.snapshot or 0)
    done = job.job.progress.step - first
    job.cancel()
    return done, len(kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two snapshots")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        draw = np.random.default_rng(0)
        x = draw.standard_normal((ROWS, WIDTH), dtype=np.float32)
        np.savez(Path(folder) / "data.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
        with (
            weft.Cluster(workers=1, shards=1, data_root=Path(folder), directory=Path(folder) / "weft") as cluster,
            weft.Client(cluster.url) as client,
        ):
            plain, added = [], []
            print(f"{'':>12} {'s a step':>9} {'snapshots':>9}")
            for _ in range(arguments.rounds):
                without, _ = steps_in(client, None, arguments.seconds)
                done, kept = steps_in(client, arguments.every, arguments.seconds)
                plain.append(arguments.seconds / without)
                added.append((arguments.seconds - done * plain[-1]) / max(kept, 1))
                print(f"{'without':>12} {plain[-1]:>9.3f} {0:>9}")
                print(f"{'with':>12} {arguments.seconds / done:>9.3f} {kept:>9}", flush=True)
    cost_s = statistics.median(added)
    print(f"a snapshot adds {cost_s:.2f} s; each minute that is {cost_s / MINUTE_S:.1%} of the steps' time")


if __name__ == "__main__":
    main()
