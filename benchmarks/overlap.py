"""How much of a step's communication computing hides, on a link of 1 Gbit/s in each direction.

Server and shard run on one host, a worker on the other: network namespaces with a shaped link between them, which needs
root and iproute2. Each variant trains the same job; variants take turns. The limit of a step is the longer of two:
computing alone, which a job without shards measures in the same run, and the bytes of a step over the link's rate.
Steps are timed by the worker's trace: the median, and the fastest tenth, which other load on the machine disturbs
least. Beside them stands what the trace says of communication that nothing hid (`weft report`).

    python benchmarks/overlap.py [--case NAME] [--rounds N] [--steps N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import weft
from weft import nn, ops
from weft.api.trace import JobTrace, SpanKind, TraceWindow
from weft.http import Retry
from weft.trace import report_of

sys.path.insert(0, str(Path(__file__).with_name("kvstore")))
from slow_link import HOSTS, NetworkError, ShapedNetwork

RATE_BITS_S = 1e9
BAR = 1.15
TOKEN = "of-this-benchmark-alone"
PORT = 8470
END_S = 600.0
FIRST_STEP = 11
"""The first that is timed: shapes are bound, and the links' rate is known."""
VARIANTS: dict[str, dict[str, str]] = {
    "alone": {},
    "1 IO thread": {},
    "2 IO threads": {"WEFT_WORKER_IO_THREADS": "2"},
    "4 IO threads": {"WEFT_WORKER_IO_THREADS": "4"},
    "8 IO threads": {"WEFT_WORKER_IO_THREADS": "8"},
    "sent after backward": {"WEFT_WORKER_OVERLAP": "false"},
}
"""The worker's settings. `alone` is a job without shards."""


def _vgg(image: weft.Expression) -> weft.Expression:
    """VGG-11 (Simonyan, Zisserman 2014) at half width on images of 64 pixels: most values are in the last layers."""
    channels, layers = 3, list[Any]()
    for wide, pooled in ((32, True), (64, True), (128, False), (128, True), (256, False), (256, True), (256, True)):
        layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU(), *([nn.MaxPool2d(2)] if pooled else [])]
        channels = wide
    layers += [nn.Flatten(), nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)]
    return nn.Sequential(*layers)(image)


def _resnet(image: weft.Expression) -> weft.Expression:
    """ResNet-18 (He et al. 2015) without normalization on images of 64 pixels: values are spread over the layers."""
    x, channels = ops.relu(nn.Conv2d(3, 64, 7, stride=2, padding=3)(image)), 64
    for stage in range(4):
        wide = 64 << stage
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = ops.relu(nn.Conv2d(channels, wide, 3, stride=stride, padding=1)(x))
            shortcut = x if channels == wide else nn.Conv2d(channels, wide, 1, stride=stride)(x)
            x = ops.relu(0.5 * nn.Conv2d(wide, wide, 3, padding=1)(y) + shortcut)
            channels = wide
    return nn.Linear(channels, 10)(nn.Flatten()(nn.GlobalAvgPool2d()(x)))


CASES = {"vgg-like": (_vgg, 16), "resnet-like": (_resnet, 8)}
"""The model, and samples of a step: so many that computing takes about as long as the link."""


def main() -> int:
    """Measures, prints the table, and returns the exit code: 2 where the network cannot be made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=sorted(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--variant", action="append", choices=sorted(VARIANTS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        _serve_cases(options)
        return 0
    console = Console(highlight=False)
    try:
        with ShapedNetwork(RATE_BITS_S) as network, tempfile.TemporaryDirectory(prefix="weft-overlap-") as folder:
            found = _measured(network, Path(folder))
    except NetworkError as error:
        console.print(f"no network namespaces here: {error}")
        return 2
    console.print(_table(found["rows"]))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def _measured(network: ShapedNetwork, folder: Path) -> dict[str, Any]:
    """Runs the client inside, on the host of the server; it says which worker it needs, and answers in the end."""
    daemons = {"WEFT_SERVER_ENCRYPT_LINKS": "false", "WEFT_SERVER_TOKEN": TOKEN, "WEFT_SHARD_TOKEN": TOKEN}
    with ExitStack() as stack:
        serving = ["weft_server", "--host", HOSTS[0], "--port", str(PORT)]
        serving += ["--directory", str(folder / "server"), "--data-root", str(folder)]
        stack.enter_context(_daemon(network, 0, serving, daemons))
        sharding = ["weft_kvstore", "--server", f"http://{HOSTS[0]}:{PORT}", "--bind", f"tcp://{HOSTS[0]}:0"]
        stack.enter_context(_daemon(network, 0, sharding, daemons))
        client = stack.enter_context(
            subprocess.Popen(
                [*network.inside(0), sys.executable, __file__, *sys.argv[1:], "--inside", str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "WEFT_URL": f"http://{HOSTS[0]}:{PORT}", "WEFT_TOKEN": TOKEN},
            )
        )
        assert client.stdin is not None
        assert client.stdout is not None
        for line in client.stdout:
            word = json.loads(line)
            if "rows" in word:
                return dict(word)
            threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
            own = {**threads, **VARIANTS[word["variant"]], "WEFT_WORKER_TOKEN": TOKEN}
            working = ["weft_worker", "--server", f"http://{HOSTS[0]}:{PORT}", "--name", "worker-0"]
            with _daemon(network, 1, [*working, "--data-root", str(folder)], own):
                client.stdin.write("\n")
                client.stdin.flush()
                client.stdout.readline()
            client.stdin.write("\n")
            client.stdin.flush()
    raise SystemExit("the client ended before its time")


@contextmanager
def _daemon(network: ShapedNetwork, host: int, arguments: list[str], environment: dict[str, str]) -> Iterator[None]:
    command = [*network.inside(host), sys.executable, "-m", *arguments, "--exit-with-parent"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, **environment}) as process:
        try:
            yield
        finally:
            process.terminate()


def _serve_cases(options: argparse.Namespace) -> None:
    """The client: asks for a worker of a variant on standard output, waits for a line, trains, and says that it has."""
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**word: Any) -> None:
        said.write(json.dumps(word) + "\n")
        said.flush()

    client, seen = weft.Client(retry=Retry(attempts=60, longest_s=1.0)), dict[tuple[str, str], list[dict[str, Any]]]()
    client.agents()  # A call that changes nothing is tried again until the server is there.
    names = options.case or list(CASES)
    variants = ["alone", *(each for each in VARIANTS if each in (options.variant or VARIANTS) and each != "alone")]
    draw = np.random.default_rng(7)
    data = options.inside / "data.npz"
    np.savez(data, x=draw.random((256, 3, 64, 64), np.float32), y=draw.integers(0, 10, 256))
    for turn in range(options.rounds):
        for name in names:
            for variant in variants[turn % len(variants) :] + variants[: turn % len(variants)]:
                say(variant=variant)
                sys.stdin.readline()
                seen.setdefault((name, variant), []).append(_round(client, name, variant, data, options.steps))
                say(done=True)
                sys.stdin.readline()
    say(rows=[_row(name, variant, seen) for name in names for variant in variants], conditions={"bits_s": RATE_BITS_S})


def _round(client: weft.Client, name: str, variant: str, data: Path, steps: int) -> dict[str, Any]:
    """Milliseconds of each traced step, megabytes of one, and what the trace says of them."""
    model, batch = CASES[name]
    image, label = weft.input("x", (weft.BATCH, 3, 64, 64)), weft.input("y", (weft.BATCH,), "int64")
    loss = nn.cross_entropy(model(image), label, name="loss")
    spec = weft.job_spec(
        loss,
        data=weft.numpy_data(str(data), train=(0, 256)),
        batch_size=batch,
        steps=FIRST_STEP + steps + 1,
        optimizer=weft.SGD(lr=1e-4),
        workers=1,
        shards=0 if variant == "alone" else 1,
        name=name,
    )
    job = client.submit_spec(spec.model_copy(update={"trace": TraceWindow(first_step=FIRST_STEP, steps=steps + 1)}))
    job.wait(timeout_s=END_S)
    trace, moved = job.trace(), job.job.traffic
    worker = report_of(trace).workers[0]
    return {
        "steps_ms": _steps_ms(trace),
        "mb": max(moved.sent_bytes, moved.received_bytes) / (FIRST_STEP + steps + 1) / 1e6,
        "exposed_ms": worker.exposed_ms,
        "overlap": worker.overlap,
    }


def _steps_ms(trace: JobTrace) -> list[float]:
    """Of each traced step but the last: from the first kernel to that of the next step."""
    begins = dict[int, float]()
    for process in trace.processes:
        for span in process.spans:
            if process.kind == "worker" and span.kind is SpanKind.COMPUTE:
                begin = process.start_us / 1e3 + span.begin_ns / 1e6
                begins[span.step] = min(begin, begins.get(span.step, begin))
    return [begins[step + 1] - begins[step] for step in sorted(begins) if step + 1 in begins]


def _row(name: str, variant: str, seen: dict[tuple[str, str], list[dict[str, Any]]]) -> dict[str, Any]:
    def step_ms(of: str, quantile: float) -> float:
        return float(np.quantile([each for found in seen[name, of] for each in found["steps_ms"]], quantile))

    def median(what: str) -> float:
        return statistics.median(each[what] for each in seen[name, variant])

    communication_ms = median("mb") * 8e9 / RATE_BITS_S
    return {
        "case": name,
        "variant": variant,
        "step_ms": step_ms(variant, 0.5),
        "fast_step_ms": step_ms(variant, 0.1),
        "compute_ms": step_ms("alone", 0.5),
        "fast_compute_ms": step_ms("alone", 0.1),
        "communication_ms": communication_ms,
        "ratio": step_ms(variant, 0.5) / max(step_ms("alone", 0.5), communication_ms),
        "fast_ratio": step_ms(variant, 0.1) / max(step_ms("alone", 0.1), communication_ms),
        "exposed_ms": median("exposed_ms"),
        "overlap": median("overlap"),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE, title=f"a step on 1 Gbit/s: the median, the fastest tenth; bar: a ratio of {BAR}")
    for name in ("case", "variant"):
        table.add_column(name, no_wrap=True)
    for name in ("step, ms", "computing alone", "link alone", "ratio", "exposed", "overlap"):
        table.add_column(name, justify="right")
    for row in rows:
        numbers = [f"{row[name]:.0f}, {row[f'fast_{name}']:.0f}" for name in ("step_ms", "compute_ms")]
        ratios = f"{row['ratio']:.2f}, {row['fast_ratio']:.2f}"
        link, exposed = f"{row['communication_ms']:.0f}", f"{row['exposed_ms']:.1f}"
        table.add_row(row["case"], row["variant"], *numbers, link, ratios, exposed, f"{row['overlap']:.0%}")
    return table


if __name__ == "__main__":
    sys.exit(main())
