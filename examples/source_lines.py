"""Tells which module of Python's own library a line comes from, with a table of a million rows that no worker holds.

A line's words, pairs of words and parts of words are hashed to rows of the table; the mean of its rows goes through one
linear layer to the modules. A step touches some thousands of rows: only those are fetched and pushed. The same job with
`row_sparse=False` moves the whole table, 64 MiB each way for each worker and step; a few such steps are run to measure.

    python examples/source_lines.py [--directory DIR] [--epochs N]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from safetensors import safe_open

import stage
import weft
from python_lines import LENGTH, ROWS, Lines, padded, read_lines
from weft import nn
from weft.api.event import StateChanged

WIDTH = 16
EPOCHS = 5
BATCH = 1024
"""Lines of a step, over both workers."""
DENSE_STEPS = (1, 4)
"""Lengths of the two runs whose difference is what a dense step costs, without the start and the end of a run."""
SAMPLES = 6
SCREEN = 80
"""Cells of the narrowest terminal that is spoken to."""
MIB = 1 << 20


def build(
    classes: int, *, rows: int = ROWS, row_sparse: bool = True
) -> tuple[weft.Expression, weft.Expression, weft.Expression]:
    """Loss, accuracy and scores of a line's table rows (batch, LENGTH) int64, of which row 0 is padding."""
    ids = weft.input("ids", ("batch", LENGTH), "int64")
    label = weft.input("label", ("batch",), "int64")
    lines = nn.EmbeddingBag(rows, WIDTH, padding_idx=0, row_sparse=row_sparse, init=nn.normal(0.1), name="lines")
    scores = nn.Linear(WIDTH, classes, name="scores")(lines(ids))
    return nn.cross_entropy(scores, label, name="loss"), nn.accuracy(scores, label, name="accuracy"), scores


def write_data(path: Path, lines: Lines) -> None:
    """Writes columns `ids` and `label`, the lines for training first."""
    np.savez(path, ids=padded(lines.text), label=lines.label)


def train(client: weft.Client, path: Path, lines: Lines, epochs: int) -> weft.JobHandle:
    """Submits the job; returns at once."""
    loss, accuracy, _ = build(len(lines.names))
    return client.submit(
        loss,
        metrics={"accuracy": accuracy},
        data=weft.numpy_data(path, train=(0, lines.trained), evaluate=(lines.trained, len(lines.text))),
        batch_size=BATCH,
        epochs=epochs,
        optimizer=weft.Adam(lr=0.02),
        workers=2,
        shards=2,
        name="source-lines",
    )


def dense_step_bytes(
    client: weft.Client, path: Path, lines: Lines, say: Callable[[str], None] = lambda _: None
) -> float:
    """Bytes that a step moves where the table travels whole, both ways over both workers; measured.

    `say` is told how far that is.
    """
    loss, _, _ = build(len(lines.names), row_sparse=False)
    data, totals = weft.numpy_data(path, train=(0, lines.trained)), []
    for steps in DENSE_STEPS:
        rule, name = weft.Adam(lr=0.02), f"source-lines-dense-{steps}"
        job = client.submit(
            loss, data=data, batch_size=BATCH, steps=steps, optimizer=rule, workers=2, shards=2, name=name
        )
        for event in job.events():
            if isinstance(event.body, StateChanged):
                say(f"{steps} of {sum(DENSE_STEPS)} steps with a dense table: {event.body.state.value}")
        totals.append(moved_bytes(job.wait()))
    short, long = DENSE_STEPS
    return (totals[1] - totals[0]) / (long - short)


def moved_bytes(job: weft.Job) -> int:
    """Bytes at the workers' sockets, both ways."""
    return job.traffic.sent_bytes + job.traffic.received_bytes


def predict(parameters: Path, text: list[str], classes: int) -> np.ndarray:
    """The share of each class for each line (lines, classes), computed here.

    The net is built on a table that has only the rows of these lines, which are all that is read of the saved one.
    """
    ids = padded(text)
    rows, places = np.unique(np.append(ids, 0), return_inverse=True)  # row 0 stays 0
    with safe_open(parameters, "np") as saved:
        table = saved.get_slice("lines.weight")
        weights = {name: saved.get_tensor(name) for name in ("scores.weight", "scores.bias")}
        weights["lines.weight"] = np.concatenate([table[row : row + 1] for row in rows.tolist()])
    _, _, scores = build(classes, rows=len(rows))
    fed = places[:-1].reshape(ids.shape)
    return nn.softmax(scores).eval({"ids": fed}, parameters=weights)


def act(console: Console, client: weft.Client, folder: Path, *, epochs: int = EPOCHS) -> None:
    """Trains on the lines, and tells how well they are told apart and what went between processes."""
    with stage.doing(console, "reading the source of Python's library, which takes some seconds"):
        lines = read_lines()
        write_data(folder / "lines.npz", lines)
    held_out = len(lines.text) - lines.trained
    console.print(
        f"{lines.trained:,} lines of {len(lines.names)} modules of Python's library to train on,\n"
        f"{held_out:,} others to test on; a table of {ROWS:,} rows, of which\na step moves those of its lines"
    )
    job = train(client, folder / "lines.npz", lines, epochs)
    finished = job.watch(console)
    parameters = folder / "lines.safetensors"
    job.save(parameters)
    console.print(f"\nand {sum(DENSE_STEPS)} steps with a dense table, for comparison")
    with stage.doing(console, "a dense table") as say:
        dense = dense_step_bytes(client, folder / "lines.npz", lines, say)
    tell(console, finished, lines, dense)
    sample(console, parameters, lines)
    console.print(f"the parameters are in {stage.shown(parameters)}")


def tell(console: Console, job: weft.Job, lines: Lines, dense: float) -> None:
    """How well the job does beside who guesses, and what it moved beside a dense table's `dense` bytes a step."""
    counts = np.bincount(lines.label[lines.trained :])
    most, of = int(counts.argmax()), counts.sum()
    took = stage.training_s(job)
    console.print(
        f"\n[bold]test accuracy {job.metrics['evaluate/accuracy']:.4f}[/] on {of:,} lines, {took:.1f} s of training\n"
        f"  by chance {1 / len(lines.names):.4f}, always {lines.names[most]!r} {counts[most] / of:.4f}"
    )
    sparse = moved_bytes(job) / job.progress.steps
    console.print(
        f"[bold]{sparse / MIB:.2f} MiB a step[/] between processes, evaluation and the final table included\n"
        f"  {dense / MIB:.0f} MiB where the table is dense: {dense / sparse:.0f} times as much"
    )


def sample(console: Console, parameters: Path, lines: Lines) -> None:
    """Some lines for the test, evenly spread over them, with what is said of them."""
    held_out = range(lines.trained, len(lines.text))
    chosen = list(held_out[:: len(held_out) // SAMPLES])[:SAMPLES]
    text = [lines.text[place] for place in chosen]
    shares = predict(parameters, text, len(lines.names))
    said = [_said(share, int(lines.label[place]), lines.names) for share, place in zip(shares, chosen, strict=True)]
    room = min(SCREEN - 4 - max(map(len, said)), max(map(len, text)))
    console.print("\nSome lines that it never saw, and where it puts them:")
    for line, where in zip(text, said, strict=True):
        shown = line if len(line) <= room else f"{line[: room - 1]}…"
        console.print(f"  {shown:<{room}}  {where}", markup=False)


def _said(share: np.ndarray, true: int, names: list[str]) -> str:
    best = int(share.argmax())
    return f"{names[best]} ({share[best]:.2f})" + ("" if best == true else f", really from {names[true]}")


def main() -> int:
    """Runs the example; returns the exit code."""
    parser = argparse.ArgumentParser(description="Tells which module a line of Python's library comes from.")
    parser.add_argument("--directory", type=Path, default=Path("build/lines"), help="for the data and the parameters")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="over the training lines")
    arguments = parser.parse_args()
    return stage.perform(arguments.directory, partial(act, epochs=arguments.epochs), takes="about a minute")


if __name__ == "__main__":
    sys.exit(main())
