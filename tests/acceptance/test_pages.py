"""The Python on pages for users runs from top to bottom, as it is typed, on one cluster."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import weft
from acceptance_place import Place
from acceptance_processes import ROOT
from free_ports import free_port
from weft.http import Retry


def blocks(page: str, kind: str = "python") -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run(place: Place, program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=place.folder,
        env={**os.environ, "WEFT_URL": place.cluster.url},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accuracies(said: str) -> list[float]:
    return [float(accuracy) for accuracy in re.findall(r"eval .*accuracy ([0-9.]+)", said)]


def test_the_readme_example_is_clean_by_the_projects_own_rules_when_it_is_saved_here() -> None:
    [program] = blocks("README.md")
    ruff, saved = [sys.executable, "-m", "ruff"], ["--stdin-filename", str(ROOT / "own_job.py"), "-"]
    for check in (["check"], ["format", "--diff"]):
        done = subprocess.run(
            [*ruff, *check, *saved], input=program, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_example_trains_when_pasted(place: Place) -> None:
    [program] = blocks("README.md")
    shorter = program.replace("epochs=40", "epochs=10")
    assert shorter != program
    assert accuracies(run(place, shorter))[-1] > 0.6


def test_from_data_and_a_module_to_trained_weights_in_it_takes_six_statements_at_most() -> None:
    _data, _module, train, use, *_ = (ast.parse(block).body for block in blocks("docs/tutorial.md"))
    assert ast.unparse(use[0]) == "job.load_into(net)"
    assert len(train) + 1 <= 6


def test_the_tutorial_trains_a_module_and_brings_its_weights_home(place: Place, client: weft.Client) -> None:
    said = run(place, "\n".join(blocks("docs/tutorial.md")))
    assert len(accuracies(said)) == 10
    [reached] = [float(number) for number in re.findall(r"^accuracy ([0-9.]+)", said, flags=re.MULTILINE)]
    assert reached > 0.85
    assert abs(reached - accuracies(said)[-1]) < 0.001  # PyTorch computes what the cluster has measured
    assert "<DryRun job steps=240 " in said
    assert list(weft.from_onnx(place.folder / "digits.onnx").inputs) == ["images"]
    [job, *_] = client.jobs()
    for line in blocks("docs/tutorial.md", "sh")[-1].splitlines():
        words = [job.id if word == "ID" else word for word in shlex.split(line, comments=True)]
        assert run(place, "from weft.cli import main; main()", *words[1:])


def test_the_page_on_graphs_runs_from_top_to_bottom(place: Place, client: weft.Client) -> None:
    programs = blocks("docs/first-job.md")
    assert len(programs) == 6
    programs[-1] = shorter = programs[-1].replace("epochs=40", "epochs=20")
    assert "epochs=20," in shorter
    said = run(place, "\n".join(programs))
    # What it prints shows something: numbers that are no zeros, and dropout that makes others of them.
    inference, training = re.findall(r"\[\[.*?\]\]", said, flags=re.DOTALL)[:2]
    assert inference != training
    assert all(float(number) for number in re.findall(r"-?\d[\d.e-]*", inference))
    reached = accuracies(said)
    assert min(reached[9], reached[-1]) > 0.85, said  # the first job's tenth epoch, the table's last
    assert "<DryRun job steps=250 " in said
    assert client.dry_run((place.folder / "job.json").read_text()).steps == 250


def pattern_of(message: str) -> re.Pattern[str]:
    """A message as the page has it, for any numbers, quoted names, paths and what `...` stands for."""
    parts = re.split(r"(\.\.\.|'[^']*'|\[[^\]]*\]|http://\S+|/\S+|\d+)", message)
    wild = {"'": r"'[^']*'", "[": r"\[.*?\]", "h": r"\S+", "/": r"\S+"}
    written = (
        re.escape(part) if not number % 2 else r"\d+" if part.isdigit() else wild.get(part[0], ".*")
        for number, part in enumerate(parts)
    )
    return re.compile("".join(written), re.DOTALL)


def mistakes(place: Place, client: weft.Client) -> Iterator[Callable[[], object]]:
    """What newcomers do, each of which raises."""
    images, labels = weft.input("images", (weft.BATCH, 1, 8, 8)), weft.input("labels", (weft.BATCH,), "int64")
    loss = weft.nn.cross_entropy(weft.nn.Linear(64, 10)(weft.nn.Flatten()(images)), labels)
    shape, rows = np.zeros((20, 1, 8, 8), np.float32), np.arange(20)

    def train(columns: Mapping[str, np.ndarray[Any, Any]], **arguments: Any) -> Callable[[], object]:
        path = place.folder / f"mistake-{len(list(place.folder.glob('mistake-*')))}.npz"
        np.savez(path, **columns)  # type: ignore[arg-type]  # its stub has another idea of keywords
        return lambda: client.submit(loss, data=path.name, **{"epochs": 1, "batch_size": 4, **arguments}).wait(60)

    good = {"images": shape, "labels": rows % 10}
    yield lambda: client.submit(loss, data="nowhere.npz", epochs=1)
    yield lambda: client.submit(loss, data="/etc/hostname", epochs=1)
    yield train({"pixels": shape, "labels": rows})
    yield train({**good, "images": shape.astype(np.float64)})
    yield train({**good, "images": shape[:, 0]})
    yield train({**good, "labels": rows[:7]})
    yield train({**good, "labels": rows})  # up to 19
    yield train(good, batch_size=50)
    yield train(good, epochs=None)
    yield lambda: client.submit(loss, data="mistake-0.npz", epochs=1, workers=5).wait(0.1)
    yield lambda: weft.Adam(learning_rate=0.1)  # type: ignore[call-arg]  # the mistake
    yield lambda: weft.nn.Linear(20, 3)(weft.input("x", (weft.BATCH, 10)))
    yield lambda: weft.Client("localhost:8470").agents()
    yield lambda: weft.Client(f"http://127.0.0.1:{free_port()}", retry=Retry(attempts=1)).agents()


def test_the_page_on_trouble_has_the_messages_that_newcomers_get(place: Place, client: weft.Client) -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    patterns = [pattern_of(message) for message in re.findall(r"^\| `([^`]+)`", page, flags=re.MULTILINE)]
    assert len(patterns) > 25
    missing, made = [], 0
    for mistake in mistakes(place, client):
        made += 1
        with pytest.raises((weft.WeftError, weft.GraphError)) as raised:
            mistake()
        if not any(pattern.search(str(raised.value)) for pattern in patterns):
            missing.append(str(raised.value))
    assert not missing
    assert made == 14
    for job in client.jobs(state=weft.JobState.PENDING):
        job.cancel()
