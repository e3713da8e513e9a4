"""Samples per second of training jobs on CPUs, against PyTorch in the same run.

A case is a model with a number of workers: jobs run on a cluster of this machine's own, as a user would start it. One
worker keeps the values itself, several share a shard. The peer is PyTorch in an environment of its own, whose Python is
`TORCH_PYTHON`: with as many processes (DistributedDataParallel over gloo where there are several), one compute thread
each. Rounds take turns; a row has the medians.

    TORCH_PYTHON=/path/to/python python benchmarks/training.py [--case NAME] [--rounds N] [--seconds S] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import weft
from weft import nn
from weft.api.event import StepDone

BATCH = 64
"""Samples a step and worker."""
LR = 0.05
STEPS = 1_000_000
"""More than any round takes: a job is cancelled when its time is over."""
PEER = Path(__file__).with_name("training_torch.py")
NO_PEER = 2
"""The exit code where PyTorch is missing."""


def _mlp() -> weft.Expression:
    image, label = weft.input("x", ("batch", 1, 28, 28)), weft.input("y", ("batch",), "int64")
    layers = [nn.Flatten(), nn.Linear(784, 512), nn.relu, nn.Linear(512, 256), nn.relu, nn.Linear(256, 10)]
    return nn.cross_entropy(nn.Sequential(*layers)(image), label, name="loss")


def _lenet() -> weft.Expression:
    image, label = weft.input("x", ("batch", 1, 28, 28)), weft.input("y", ("batch",), "int64")
    net = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding="same"),
        nn.relu,
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.relu,
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.relu,
        nn.Linear(120, 84),
        nn.relu,
        nn.Linear(84, 10),
    )
    return nn.cross_entropy(net(image), label, name="loss")


@dataclass(frozen=True)
class Case:
    """A model, written twice: here, and under its name in the peer's file."""

    model: str
    build: Callable[[], weft.Expression]
    workers: int


CASES = {
    "mlp-1w": Case("mlp", _mlp, 1),
    "lenet-1w": Case("lenet", _lenet, 1),
    "mlp-2w": Case("mlp", _mlp, 2),
    "lenet-2w": Case("lenet", _lenet, 2),
}


def main() -> int:
    """Measures, tells, and gives the exit code."""
    options = _options()
    console = Console(highlight=False)
    peer = os.environ.get("TORCH_PYTHON", "")
    name = _peer_name(peer)
    if name is None:
        console.print(f"failed: TORCH_PYTHON is {peer!r}, which is no Python that has PyTorch", style="red")
        return NO_PEER
    conditions = {
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        "batch": BATCH,
        "rounds": options.rounds,
        "load_before": round(os.getloadavg()[0], 2),
    }
    rows = []
    with tempfile.TemporaryDirectory(prefix="weft-training-") as folder:
        data = _write_data(Path(folder))
        for case in options.case or list(CASES):
            rows.append(_measured(case, data, peer, options) | {"peer_name": name})
            console.print(f"{case}: {rows[-1]['weft']:,.0f} / {rows[-1]['peer']:,.0f} samples a second", markup=False)
    console.print(_table(rows))
    if options.json is not None:
        options.json.write_text(json.dumps({"conditions": conditions, "rows": rows}, indent=2) + "\n")
    return 0


def _measured(name: str, data: Path, peer: str, options: argparse.Namespace) -> dict[str, Any]:
    case = CASES[name]
    ours, theirs = [], []
    with _cluster(case.workers, data.parent) as client:
        for _ in range(options.rounds):
            ours.append(_weft_round(client, case, data, options.seconds))
            theirs.append(_peer_round(peer, case, data, options.seconds))
    found = {"case": name, "weft": statistics.median(ours), "peer": statistics.median(theirs)}
    return found | {"ratio": found["weft"] / found["peer"], "weft_rounds": ours, "peer_rounds": theirs}


@contextmanager
def _cluster(workers: int, folder: Path) -> Iterator[weft.Client]:
    """A cluster whose workers have one compute thread each."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    before = {name: os.environ.get(name) for name in threads}
    os.environ.update(threads)
    try:
        with weft.Cluster(workers, 1, data_root=folder) as cluster, cluster.client() as client:
            yield client
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _weft_round(client: weft.Client, case: Case, data: Path, seconds: float) -> float:
    """Samples per second of a job between its second and its last report of a step."""
    rows = len(np.load(data)["y"])
    job = client.submit(
        case.build(),
        data=weft.numpy_data(str(data), train=(0, rows)),
        batch=BATCH * case.workers,
        steps=STEPS,
        rule=weft.Sgd(lr=LR),
        workers=case.workers,
        name=case.model,
    )
    told = []
    for event in job.events():
        if not isinstance(event.body, StepDone):
            continue
        told.append((event.at, event.body.step))
        if len(told) > 2 and (event.at - told[1][0]).total_seconds() >= seconds:
            break
    job.cancel()
    if len(told) < 3:
        raise SystemExit(f"the job of {case.model} ended before its time: {job.refresh().reason}")
    (begun, first), (ended, last) = told[1], told[-1]
    while not job.refresh().state.is_terminal:
        pass
    return (last - first) * BATCH * case.workers / (ended - begun).total_seconds()


def _peer_round(python: str, case: Case, data: Path, seconds: float) -> float:
    """Samples per second of the peer, all its processes together."""
    order = {"model": case.model, "world": case.workers, "batch": BATCH, "rate": LR, "seconds": seconds}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        order |= {"data": str(data), "port": probe.getsockname()[1]}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [python, str(PEER), json.dumps(order | {"rank": rank})], stdout=subprocess.PIPE, env=environment
        )
        for rank in range(case.workers)
    ]
    told = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit(f"the peer failed on {case.model}")
    return sum(json.loads(each)["samples_per_second"] for each in told)


def _peer_name(python: str) -> str | None:
    """What the peer is called, None where it is missing."""
    try:
        asked = subprocess.run(
            [python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return f"PyTorch {asked.stdout.strip()}, 1 thread a process" if asked.returncode == 0 else None


def _write_data(folder: Path) -> Path:
    """4096 images (1, 28, 28), standard normal, with the labels of a random linear teacher."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((4096, 1, 28, 28), np.float32)
    y = np.argmax(x.reshape(len(x), -1) @ draw.standard_normal((784, 10), np.float32), axis=1)
    path = folder / "images.npz"
    np.savez(path, x=x, y=y.astype(np.int64))
    return path


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table("case", "weft", "peer", "ratio", box=box.SIMPLE)
    for row in rows:
        table.add_row(row["case"], f"{row['weft']:,.0f}", f"{row['peer']:,.0f}", f"{row['ratio']:.2f}")
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Samples per second of training jobs, against PyTorch.")
    parser.add_argument("--case", action="append", choices=list(CASES), help="one of these alone; may be repeated")
    parser.add_argument("--rounds", type=int, default=3, help="turns of both sides")
    parser.add_argument("--seconds", type=float, default=4.0, help="measured in a round, of each side")
    parser.add_argument("--json", type=Path, help="where conditions and rows are written")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
