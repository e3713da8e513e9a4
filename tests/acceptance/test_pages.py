"""The Python on pages for users runs from top to bottom, as it is typed, on one cluster."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import weft
from acceptance_place import Place
from acceptance_processes import ROOT
from free_ports import free_port
from server_running import running
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


IN_TURN = """
import sys
for program in sys.argv[1:]:
    exec(compile(program, "<page>", "exec"), {"__name__": "__main__"})
    print(flush=True, end="\\0")
"""


@pytest.fixture(scope="module")
def pages(place: Place) -> dict[str, str]:
    """What the programs of pages print, by page. One process runs them one after another: PyTorch takes seconds to
    import."""
    [readme] = blocks("README.md")
    shorter = readme.replace("epochs=40", "epochs=10")
    assert shorter != readme
    others = ("docs/data.md", "docs/tutorial.md")
    said = run(place, IN_TURN, shorter, *("\n".join(blocks(page)) for page in others)).split("\0")
    return dict(zip(("README.md", *others), said, strict=False))


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


def test_the_readme_example_trains_when_pasted(pages: dict[str, str]) -> None:
    assert accuracies(pages["README.md"])[-1] > 0.6


def test_a_csv_file_trains_as_the_page_on_data_says(place: Place, pages: dict[str, str]) -> None:
    said = pages["docs/data.md"]
    assert accuracies(said)[-1] > 0.8
    assert "the first flower is setosa" in said
    with np.load(place.folder / "large.npz") as large:
        assert (large["x"].shape, large["label"][-1]) == ((1000, 4), 249 % 3)


def test_from_data_and_a_module_to_trained_weights_in_it_takes_six_statements_at_most() -> None:
    _data, _module, train, use, *_ = (ast.parse(block).body for block in blocks("docs/tutorial.md"))
    assert ast.unparse(use[0]) == "job.load_into(net)"
    assert len(train) + 1 <= 6


def test_the_tutorial_trains_a_module_and_brings_its_weights_home(
    place: Place, client: weft.Client, pages: dict[str, str]
) -> None:
    said = pages["docs/tutorial.md"]
    assert len(accuracies(said)) == 10
    [reached] = [float(number) for number in re.findall(r"^accuracy ([0-9.]+)", said, flags=re.MULTILINE)]
    assert reached > 0.85
    assert abs(reached - accuracies(said)[-1]) < 0.001  # PyTorch computes what the cluster has measured
    assert "<DryRun job: 240 steps, " in said
    assert list(weft.from_onnx(place.folder / "digits.onnx").inputs) == ["images"]
    [job, *_] = client.jobs()
    for line in blocks("docs/tutorial.md", "sh")[-1].splitlines():
        words = [job.id if word == "ID" else word for word in shlex.split(line, comments=True)]
        assert place.printed(*words[1:])


def test_the_page_on_graphs_runs_from_top_to_bottom(place: Place, client: weft.Client) -> None:
    programs = blocks("docs/first-job.md")
    assert len(programs) == 6
    programs[-1] = shorter = programs[-1].replace("epochs=40", "epochs=12")
    assert "epochs=12," in shorter
    said = run(place, "\n".join(programs))
    # What it prints shows something: numbers that are no zeros, and dropout that makes others of them.
    inference, training = re.findall(r"\[\[.*?\]\]", said, flags=re.DOTALL)[:2]
    assert inference != training
    assert all(float(number) for number in re.findall(r"-?\d[\d.e-]*", inference))
    reached = accuracies(said)
    assert min(reached[9], reached[-1]) > 0.85, said  # the first job's tenth epoch, the table's last
    assert "<DryRun job: 250 steps, " in said
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


def mistakes(place: Place, client: weft.Client) -> Iterator[tuple[str, Callable[[], object]]]:
    """What newcomers do, each of which raises: with what the message says of it."""
    images, labels = weft.input("images", (weft.BATCH, 1, 8, 8)), weft.input("labels", (weft.BATCH,), "int64")
    flat = weft.nn.Flatten()(images)
    loss = weft.nn.cross_entropy(weft.nn.Linear(64, 10)(flat), labels)
    targets = weft.input("targets", (weft.BATCH, 1))
    distance = weft.nn.mean_squared_error(weft.nn.Linear(64, 1)(flat), targets)
    pixels = np.random.default_rng(0).random((20, 1, 8, 8), np.float32)
    rows = np.arange(20)
    bags = weft.nn.EmbeddingBag(20, 4)(weft.input("ids", (weft.BATCH, 1), "int64"))
    bag, ids = weft.nn.cross_entropy(weft.nn.Linear(4, 10)(bags), labels), np.where(rows == 7, 20, rows)[:, None]
    a_nan = np.where(rows[:, None, None, None] == 7, np.float32(np.nan), pixels)

    def train(
        columns: Mapping[str, np.ndarray[Any, Any]],
        trained: weft.Expression = loss,
        patience_s: float = 60,
        rows: Mapping[str, tuple[int, int]] = MappingProxyType({}),
        **arguments: Any,
    ) -> Callable[[], object]:
        path = place.folder / f"mistake-{len(list(place.folder.glob('mistake-*')))}.npz"
        np.savez(path, **columns)  # type: ignore[arg-type]  # its stub has another idea of keywords
        settings = {"epochs": 1, "batch_size": 4, **arguments}
        return lambda: client.submit(trained, data=weft.numpy_data(path.name, **rows), **settings).wait(patience_s)

    good = {"images": pixels, "labels": rows % 10}
    yield f"cannot open {place.folder}/nowhere.npz", lambda: client.submit(loss, data="nowhere.npz", epochs=1)
    yield "start weft with --data-root", lambda: client.submit(loss, data="/etc/hostname", epochs=1)
    yield "did you mean 'image'", train({"image": pixels, "labels": rows})
    yield "save 'images' too, or name another column", train({"x": pixels, "labels": rows})
    yield "save the column with .astype('float32')", train({**good, "images": pixels.astype(np.float64)})
    yield "reshape the column", train({**good, "images": pixels[:, 0]})
    yield "give both as many", train({**good, "labels": rows[:7]})
    yield (
        "of column 'labels', read in step 1, is not one of the 10 classes",
        train({**good, "labels": rows}),
    )  # up to 19
    yield "give at most 20", train(good, batch_size=50)
    yield "neither was given", train(good, epochs=None)
    yield "both epochs=1 and steps=3 were given", train(good, steps=3)
    yield "did you mean 'batch_size'?", train(good, batchsize=4)
    yield "write optimizer=weft.SGD(lr=...)", train(good, learning_rate=0.1)
    yield "did you mean 'adam'?", train(good, optimizer="adm")
    yield "weft.SGD(...), weft.Adam(...), or a name such as 'adam'", train(good, optimizer=0.1)
    yield "did you mean 'lr'?", lambda: weft.Adam(learning_rate=0.1)  # type: ignore[call-arg]  # the mistake
    yield "Adam takes no parameters: leave them out", lambda: weft.Adam([pixels], lr=0.1)  # type: ignore[misc, arg-type]
    yield "did you mean 'evaluate'?", lambda: weft.numpy_data("a.npz", eval=(0, 1))  # type: ignore[call-arg]
    yield ".astype('float32') or the like converts a value", (flat > 0).mean
    yield "did you mean 'mean_squared_error'?", lambda: weft.nn.mse  # type: ignore[attr-defined]
    yield "did you mean 'softmax'?", lambda: weft.ops.sofmax  # type: ignore[attr-defined]
    yield "write ((x - x.mean(axis, keepdims=True)) ** 2)", lambda: flat.std  # type: ignore[attr-defined]
    yield f"there is no file {Path.cwd()}/none.safetensors", train(good, init_from="none.safetensors")
    for workers in (1, 2):
        yield (
            "nan since step 4, and row 7 of column 'images' is not finite: correct the data",
            train({**good, "images": a_nan}, workers=workers, seed=1),
        )
        yield (
            "the loss of the evaluation after step 3 is nan, and row 7 of column 'images' is not finite: correct the",
            train({**good, "images": a_nan}, rows={"train": (8, 20), "evaluate": (0, 8)}, workers=workers),
        )
        yield (
            "index 20 in row 7 of column 'ids', read in step 4, is not one of the 20 rows",
            train({"ids": ids, "labels": rows % 10}, bag, workers=workers, seed=1),
        )
        yield (
            "inf since step 4: try a smaller lr",
            train(
                {"images": pixels, "targets": rows[:, None].astype(np.float32)},
                distance,
                epochs=9,
                workers=workers,
                optimizer=weft.SGD(lr=1e6),
            ),
        )
    yield (
        "start 3 more (python -m weft_worker --server URL), or submit it for at most 2",
        train(good, workers=5, patience_s=0.1),
    )
    yield "has in_features=20", lambda: weft.nn.Linear(20, 3)(weft.input("x", (weft.BATCH, 10)))
    yield "http://127.0.0.1:8470", lambda: weft.Client("localhost:8470").agents()
    yield "start one with", lambda: weft.Client(f"http://127.0.0.1:{free_port()}", retry=Retry(attempts=2)).agents()


def told(mistake: Callable[[], object]) -> str:
    """The message of what is raised, alone: nothing else is shown with it."""
    with pytest.raises((weft.WeftError, weft.GraphError, AttributeError)) as raised:
        mistake()
    error = raised.value
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__
    return str(error)


def test_what_newcomers_do_is_answered_by_one_sentence_that_the_page_on_trouble_has(
    place: Place, client: weft.Client
) -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    patterns = [pattern_of(message) for message in re.findall(r"^\| `([^`]+)`", page, flags=re.MULTILINE)]
    assert len(patterns) > 25
    wrong, made = [], 0
    for sentence, mistake in mistakes(place, client):
        made += 1
        message = told(mistake)
        is_on_page = any(pattern.search(message) for pattern in patterns)
        if sentence not in message or "\n" in message or not is_on_page:
            wrong.append((sentence, message, is_on_page))
    assert not wrong, "\n".join(map(str, wrong))
    assert made == 35
    for job in client.jobs(state=weft.JobState.PENDING):
        job.cancel()


def test_a_token_that_the_server_does_not_know_is_answered_by_one_sentence(tmp_path: Path) -> None:
    with running(tmp_path, token="an-admin-by-the-settings") as http:
        for token, said in ((None, "the call has no token"), ("another-token", "does not know the call's token")):
            with weft.Client(str(http.base_url), token=token) as client:
                assert said in told(client.agents)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("sumbit", "job.json"), 2, "Did you mean 'submit'?"),
        (("submit", "nowhere.json"), 2, "there is no file"),
        (("submit", "epoch.json"), 1, "did you mean 'epochs'?"),
        (("logs", "nothing"), 1, "'nothing'"),
        (("up", "--port", "PORT", "--directory", "own"), 1, "port PORT of 127.0.0.1 is in use"),
        (("agents", "--url", "http://127.0.0.1:9"), 3, "start one with"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_the_command_line_answers_a_mistake_without_a_traceback(
    place: Place, words: tuple[str, ...], code: int, message: str
) -> None:
    port = place.cluster.url.rpartition(":")[2]
    (place.folder / "epoch.json").write_text('{"run": {"epoch": 3}}')
    done = place.command(*(word.replace("PORT", port) for word in words))
    assert done.exit_code == code, done.stderr
    assert message.replace("PORT", port) in done.stderr
    assert "Traceback" not in done.stderr
