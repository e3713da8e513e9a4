"""The Python on pages for users runs from top to bottom, as it is typed, on one cluster."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import weft
from acceptance_place import Place
from acceptance_processes import ROOT


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
