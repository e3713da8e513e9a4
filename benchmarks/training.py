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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import weft
from weft import nn, ops
from weft.api.event import StepDone

LR = 0.05
TOKENS = 256
"""How many tokens the decoder's text has: bytes."""
BAG = 16
"""Ids a sample."""
STEPS = 1_000_000
"""More than any round takes: a job is cancelled when its time is over."""
PEER = Path(__file__).with_name("training_torch.py")
NO_PEER = 2
"""The exit code where PyTorch is missing."""

Sizes = dict[str, int]
Arrays = tuple[np.ndarray, np.ndarray]


def _mlp(_sizes: Sizes) -> weft.Expression:
    image, label = weft.input("x", ("batch", 1, 28, 28)), weft.input("y", ("batch",), "int64")
    layers = [nn.Flatten(), nn.Linear(784, 512), nn.relu, nn.Linear(512, 256), nn.relu, nn.Linear(256, 10)]
    return nn.cross_entropy(nn.Sequential(*layers)(image), label, name="loss")


def _lenet(_sizes: Sizes) -> weft.Expression:
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


def _resnet(sizes: Sizes) -> weft.Expression:
    """ResNet-18 (He et al. 2015), its stem of 7x7 and pooling included, on images of 32 pixels."""
    image, label = weft.input("x", ("batch", 3, 32, 32)), weft.input("y", ("batch",), "int64")
    x = nn.MaxPool2d(3, stride=2, padding=1)(ops.relu(_conv_norm(image, 3, sizes["width"], 7, 2)))
    channels = sizes["width"]
    for stage in range(4):
        wide = sizes["width"] << stage
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = ops.relu(_conv_norm(x, channels, wide, 3, stride))
            shortcut = x if channels == wide else _conv_norm(x, channels, wide, 1, stride)
            x = ops.relu(_conv_norm(y, wide, wide, 3, 1) + shortcut)
            channels = wide
    scores = nn.Linear(channels, 10)(nn.Flatten()(nn.GlobalAvgPool2d()(x)))
    return nn.cross_entropy(scores, label, name="loss")


def _conv_norm(x: weft.Expression, inputs: int, outputs: int, kernel: int, stride: int) -> weft.Expression:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=(kernel - 1) // 2, bias=False)
    return nn.BatchNorm(outputs)(convolution(x))


def _decoder(sizes: Sizes) -> weft.Expression:
    """A decoder that predicts each next token: norms first, heads of 64, no dropout."""
    width, tokens = sizes["width"], sizes["tokens"]
    ids, following = weft.input("x", ("batch", tokens), "int64"), weft.input("y", ("batch", tokens), "int64")
    embedded = nn.Embedding(TOKENS, width, row_sparse=False)(ids)
    x = embedded + weft.parameter("positions", (tokens, width), nn.normal(0.02)((tokens, width)))
    for _ in range(sizes["layers"]):
        x = nn.TransformerLayer(width, width // 64, causal=True, dropout=0.0)(x)
    return nn.cross_entropy(nn.Linear(width, TOKENS)(nn.LayerNorm(width)(x)), following, name="loss")


def _embedding_bag(sizes: Sizes) -> weft.Expression:
    ids, label = weft.input("x", ("batch", BAG), "int64"), weft.input("y", ("batch",), "int64")
    return nn.cross_entropy(nn.Linear(16, 10)(nn.EmbeddingBag(sizes["rows"], 16)(ids)), label, name="loss")


def _images(draw: np.random.Generator, _sizes: Sizes) -> Arrays:
    """4096 images (1, 28, 28), standard normal, with the labels of a random linear teacher."""
    x = draw.standard_normal((4096, 1, 28, 28), np.float32)
    return x, np.argmax(x.reshape(len(x), -1) @ draw.standard_normal((784, 10), np.float32), axis=1)


def _coloured_images(draw: np.random.Generator, _sizes: Sizes) -> Arrays:
    return draw.standard_normal((1024, 3, 32, 32), np.float32), draw.integers(0, 10, 1024)


def _sentences(draw: np.random.Generator, sizes: Sizes) -> Arrays:
    text = draw.integers(0, TOKENS, (1024, sizes["tokens"] + 1))
    return text[:, :-1], text[:, 1:]


def _bags(draw: np.random.Generator, sizes: Sizes) -> Arrays:
    return draw.integers(0, sizes["rows"], (16384, BAG)), draw.integers(0, 10, 16384)


@dataclass(frozen=True)
class Model:
    """A model, written twice: here, and under its name in the peer's file. `batch` is samples a step and worker."""

    build: Callable[[Sizes], weft.Expression]
    draw: Callable[[np.random.Generator, Sizes], Arrays]
    sizes: Sizes = field(default_factory=dict)
    tiny: Sizes = field(default_factory=dict)
    """Sizes for a test that all runs through."""
    batch: int = 64


MODELS = {
    "mlp": Model(_mlp, _images),
    "lenet": Model(_lenet, _images),
    "resnet18-32px": Model(_resnet, _coloured_images, {"width": 64}, {"width": 2}),
    "decoder-4x256": Model(
        _decoder,
        _sentences,
        {"layers": 4, "width": 256, "tokens": 64},
        {"layers": 1, "width": 64, "tokens": 4},
        batch=16,
    ),
    "embedding-bag": Model(_embedding_bag, _bags, {"rows": 1 << 20}, {"rows": 1 << 10}),
}


@dataclass(frozen=True)
class Case:
    """A model with a number of workers, and the ratio to the peer that it should reach."""

    model: str
    workers: int
    bar: float


CASES = {
    "mlp-1w": Case("mlp", 1, 1.0),
    "lenet-1w": Case("lenet", 1, 0.9),
    "resnet18-32px-1w": Case("resnet18-32px", 1, 0.75),
    "decoder-4x256-1w": Case("decoder-4x256", 1, 0.75),
    "embedding-bag-1w": Case("embedding-bag", 1, 0.75),
    "mlp-2w": Case("mlp", 2, 1.3),
    "lenet-2w": Case("lenet", 2, 1.2),
    "resnet18-32px-2w": Case("resnet18-32px", 2, 0.9),
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
        "batch": {name: model.batch for name, model in MODELS.items()},
        "sizes": "tiny" if options.tiny else "full",
        "rounds": options.rounds,
        "load_before": round(os.getloadavg()[0], 2),
    }
    rows = []
    with tempfile.TemporaryDirectory(prefix="weft-training-") as folder:
        for case in options.case or list(CASES):
            rows.append(_measured(case, Path(folder), peer, options) | {"peer_name": name})
            console.print(f"{case}: {rows[-1]['weft']:,.0f} / {rows[-1]['peer']:,.0f} samples a second", markup=False)
    console.print(_table(rows))
    if options.json is not None:
        options.json.write_text(json.dumps({"conditions": conditions, "rows": rows}, indent=2) + "\n")
    return 0


def _measured(name: str, folder: Path, peer: str, options: argparse.Namespace) -> dict[str, Any]:
    case = CASES[name]
    model = MODELS[case.model]
    sizes = model.tiny if options.tiny else model.sizes
    data = folder / f"{case.model}.npz"
    if not data.exists():
        x, y = model.draw(np.random.default_rng(0), sizes)
        np.savez(data, x=x, y=y.astype(np.int64))
    order = {"model": case.model, "sizes": sizes, "world": case.workers, "batch": model.batch, "rate": LR}
    order |= {"seconds": options.seconds, "data": str(data)}
    ours, theirs = [], []
    with _cluster(case.workers, folder) as client:
        for _ in range(options.rounds):
            ours.append(_weft_round(client, name, model.build(sizes), data, options.seconds))
            theirs.append(_peer_round(peer, order))
    found: dict[str, Any] = {"case": name, "weft": statistics.median(ours), "peer": statistics.median(theirs)}
    found |= {"ratio": found["weft"] / found["peer"], "bar": case.bar}
    return found | {"weft_rounds": ours, "peer_rounds": theirs}


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


def _weft_round(client: weft.Client, name: str, loss: weft.Expression, data: Path, seconds: float) -> float:
    """Samples per second of a job between its second and its last report of a step."""
    case = CASES[name]
    batch = MODELS[case.model].batch * case.workers
    with np.load(data) as arrays:
        rows = len(arrays["y"])
    job = client.submit(
        loss,
        data=weft.numpy_data(str(data), train=(0, rows)),
        batch_size=batch,
        steps=STEPS,
        optimizer=weft.SGD(lr=LR),
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
        raise SystemExit(f"the job of {name} ended before its time: {job.refresh().reason}")
    (begun, first), (ended, last) = told[1], told[-1]
    while not job.refresh().state.is_terminal:
        pass
    return (last - first) * batch / (ended - begun).total_seconds()


def _peer_round(python: str, order: dict[str, Any]) -> float:
    """Samples per second of the peer, all its processes together."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        order = order | {"port": probe.getsockname()[1]}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [python, str(PEER), json.dumps(order | {"rank": rank})], stdout=subprocess.PIPE, env=environment
        )
        for rank in range(order["world"])
    ]
    told = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit(f"the peer failed on {order['model']}")
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


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table("case", "weft", "peer", "ratio", "bar", box=box.SIMPLE)
    for row in rows:
        table.add_row(
            row["case"], f"{row['weft']:,.0f}", f"{row['peer']:,.0f}", f"{row['ratio']:.2f}", f"{row['bar']:.2f}"
        )
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Samples per second of training jobs, against PyTorch.")
    parser.add_argument("--case", action="append", choices=list(CASES), help="one of these alone; may be repeated")
    parser.add_argument("--rounds", type=int, default=3, help="turns of both sides")
    parser.add_argument("--seconds", type=float, default=4.0, help="measured in a round, of each side")
    parser.add_argument("--json", type=Path, help="where conditions and rows are written")
    parser.add_argument("--tiny", action="store_true", help="models of no use but to see that all runs through")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
