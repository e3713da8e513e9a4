"""Trains a small conv net on handwritten digits, with two workers and two shards on this machine.

The data is the test part of "Optical Recognition of Handwritten Digits" (UCI; Alpaydin and Kaynak 1998) that
scikit-learn brings along: 1797 images of 8 x 8 pixels, in the order of who wrote them. The last 360, other people's
hands than the first, are for evaluation and never read in training. A pass has each of the others in five variants: as
it is, and moved by one pixel to each side.

    python examples/digits.py [--directory DIR] [--epochs N]
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console

import stage
import weft
from weft import nn

EVALUATION_ROWS = 360
EPOCHS = 10
MOVES = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))
"""How the training images are moved: pixels down, pixels right."""
BATCH = 64
"""Samples of a step, over both workers."""


def build() -> tuple[weft.Expression, weft.Expression]:
    """Loss and accuracy of a LeNet-like net: image (batch, 1, 8, 8) float32 within 0..1, label (batch) int64."""
    image = weft.input("image", ("batch", 1, 8, 8))
    label = weft.input("label", ("batch",), "int64")
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding="same", name="conv1"),
        nn.BatchNorm(16, name="norm1"),
        nn.relu,
        nn.Conv2d(16, 32, 3, padding="same", name="conv2"),
        nn.BatchNorm(32, name="norm2"),
        nn.relu,
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(32 * 4 * 4, 64, name="hidden"),
        nn.relu,
        nn.Dropout(0.5),
        nn.Linear(64, 10, name="scores"),
    )
    scores = net(image)
    return nn.cross_entropy(scores, label, name="loss"), nn.accuracy(scores, label, name="accuracy")


def moved(images: np.ndarray, down: int, right: int) -> np.ndarray:
    """Images (n, 1, h, w) moved by as many pixels; what comes in is empty."""
    height, width = images.shape[2:]
    framed = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return framed[:, :, 1 - down : 1 - down + height, 1 - right : 1 - right + width]


def write_data(path: Path) -> int:
    """Writes columns `image` and `label`, the rows for evaluation last; returns the number of rows."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    image = (digits.images[:, None] / 16).astype(np.float32)
    label = digits.target.astype(np.int64)
    trained, held_out = image[:-EVALUATION_ROWS], image[-EVALUATION_ROWS:]
    image = np.concatenate([*(moved(trained, *by) for by in MOVES), held_out])
    label = np.concatenate([np.tile(label[:-EVALUATION_ROWS], len(MOVES)), label[-EVALUATION_ROWS:]])
    np.savez(path, image=image, label=label)
    return len(image)


def train(client: weft.Client, path: str, rows: int, epochs: int) -> weft.JobHandle:
    """Submits the job; returns at once."""
    loss, accuracy = build()
    held_out = rows - EVALUATION_ROWS
    return client.submit(
        loss,
        metrics={"accuracy": accuracy},
        data=weft.numpy_data(path, train=(0, held_out), evaluate=(held_out, rows)),
        batch_size=BATCH,
        epochs=epochs,
        optimizer=weft.Adam(lr=0.001),
        workers=2,
        shards=2,
        name="digits",
    )


def act(console: Console, client: weft.Client, folder: Path, *, epochs: int = EPOCHS) -> None:
    """Trains on the digits, and tells how well they are told apart."""
    data, parameters = folder / "digits.npz", folder / "digits.safetensors"
    rows = write_data(data)
    originals = (rows - EVALUATION_ROWS) // len(MOVES)
    console.print(
        f"{originals} handwritten digits to train on, each in {len(MOVES)} variants; "
        f"{EVALUATION_ROWS} others to test on"
    )
    job = train(client, str(data), rows, epochs)
    finished = job.watch(console)
    job.save(parameters)
    accuracy, took = finished.metrics["evaluate/accuracy"], stage.training_s(finished)
    console.print(f"\n[bold]test accuracy {accuracy:.4f}[/] on {EVALUATION_ROWS} images, {took:.1f} s of training")
    console.print(f"the parameters are in {stage.shown(parameters)}")


def main() -> int:
    """Runs the example; returns the exit code."""
    parser = argparse.ArgumentParser(description="Trains a conv net on handwritten digits with 2 workers and 2 shards.")
    parser.add_argument("--directory", type=Path, default=Path("build/digits"), help="for the data and the parameters")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="over the training rows")
    arguments = parser.parse_args()
    return stage.perform(arguments.directory, partial(act, epochs=arguments.epochs), takes="less than a minute")


if __name__ == "__main__":
    sys.exit(main())
