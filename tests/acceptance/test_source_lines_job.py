"""A table of a million rows on real processes: trained, saved, and evaluated in plain NumPy."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file

import python_lines
import source_lines
import weft
from acceptance_place import Place

TABLE_BYTES = python_lines.ROWS * source_lines.WIDTH * 4


def scores(saved: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """What the net gives, in float64, of rows that are added up without padding."""
    table = saved["lines.weight"].astype(np.float64)
    means = np.stack([table[line[line > 0]].mean(axis=0) for line in ids])
    return means @ saved["scores.weight"].T.astype(np.float64) + saved["scores.bias"]


def test_accuracy_of_the_saved_table_in_plain_numpy_is_what_the_job_reports_and_few_bytes_travelled(
    client: weft.Client, place: Place, tmp_path: Path
) -> None:
    lines = python_lines.read_lines(most=150)
    data = place.folder / "lines.npz"
    source_lines.write_data(data, lines)
    job = source_lines.train(client, data, lines, epochs=6)
    finished = job.wait(timeout_s=180)
    path = tmp_path / "lines.safetensors"
    job.save(path)
    with np.load(data) as columns:
        ids, label = columns["ids"][lines.trained :], columns["label"][lines.trained :]
    accuracy = float((scores(load_file(path), ids).argmax(axis=1) == label).mean())
    assert finished.metrics["evaluate/accuracy"] == pytest.approx(accuracy, abs=2 / len(label))  # a tie may fall apart
    assert accuracy > 20 / len(lines.names)
    trained = source_lines.moved_bytes(finished) - TABLE_BYTES  # the keeper brings the whole table once
    assert 0 < trained / finished.progress.steps < TABLE_BYTES / 20
    screen = io.StringIO()
    console = Console(file=screen, width=100, highlight=False, soft_wrap=True)
    source_lines.tell(console, finished, lines, dense=4 * TABLE_BYTES)
    source_lines.sample(console, path, lines)
    told = screen.getvalue()
    assert max(map(len, told.splitlines())) <= 80
    assert f"test accuracy {finished.metrics['evaluate/accuracy']:.4f} on {len(label):,} lines" in told
    assert "256 MiB where the table is dense" in told
    assert told.count(" (0.") + told.count(" (1.") >= source_lines.SAMPLES
