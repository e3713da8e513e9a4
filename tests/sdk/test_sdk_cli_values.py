"""The command line: dry runs, other beginnings, and parameters that are set."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from click.testing import Result
from safetensors.numpy import load, save_file
from typer.testing import CliRunner

import weft
from sdk_fakes import DRY, Script, answers, job, problem
from weft.api.job import JobPage, JobSpec, ParameterInfo, ParameterList, Traffic
from weft.api.values import Uploaded, ValuesSet
from weft.cli import jobs as jobs_module
from weft.cli import parameters as parameters_module
from weft.cli import programs as programs_module
from weft.cli.app import app
from weft.cli.render import size

Run = Callable[..., Result]

LISTED = ParameterList(parameters=[ParameterInfo(name="a", dtype="float32", shape=[2], trainable=True)])
UPLOADED = Uploaded(id="up-1", names=["a"], size_bytes=8, expires_at="2024-05-06T07:08:09Z")
MIB = 1 << 20


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line against a script of answers."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)

    def run_(script: Script, *arguments: str, stdin: str | None = None) -> Result:
        for module in (jobs_module, parameters_module, programs_module):
            monkeypatch.setattr(module, "Client", lambda _url=None: script.client())
        return CliRunner().invoke(app, arguments, input=stdin, catch_exceptions=False)

    return run_


def test_a_dry_run_says_what_a_job_would_take_and_starts_nothing(run: Run) -> None:
    script = answers(DRY)
    result = run(script, "submit", "-", "--dry-run", stdin='{"name": "lines"}')
    (request,) = script.requests
    assert (request.method, request.url.path, request.url.params["dry_run"]) == ("POST", "/v1/jobs", "true")
    assert request.content == b'{"name": "lines"}'
    assert [" ".join(line.split()) for line in result.stdout.splitlines()] == [
        "name lines",
        "on 2 workers, 2 shards; needs 2 workers, 1 is there",
        "steps 500, 100 per epoch",
        "keys 2 in 7 slices, 1 table by rows",
        "a worker parameters 1.0 MiB, training step 3.0 MiB",
        "peak memory 6.0 MiB of 9.0 MiB intermediates: arena 5.0 MiB, largest live set 5.0 MiB, sent 1.0 MiB; "
        "and 1 value of a size that the data decides",
        "recompute off 6.0 MiB, 1,000,000.0 M operations a step",
        "recompute cheap 3.0 MiB, 1,010,000.0 M operations a step: 50% less memory, 1.0% more operations",
        "all shards parameters 1.0 MiB, state 2.0 MiB, tables 64.0 MiB and state 128.0 MiB if every row is touched; "
        "the largest shard at most 100.0 MiB",
        "each step fetched 100 B, sent 2.0 KiB; in rows at most 1.0 MiB and 1.0 MiB",
    ]
    document = json.loads(run(answers(DRY), "submit", "-", "--dry-run", "-o", "json", stdin="{}").stdout)
    assert document["worker_memory"]["train_peak_bytes"] == 3 * MIB


def test_a_dry_run_that_is_refused_exits_with_1_and_the_pointer(run: Run) -> None:
    errors = [{"pointer": "/optimizer/lr", "detail": "is negative"}]
    result = run(
        answers(problem(422, "job-refused", "the job is refused", errors)), "submit", "-", "--dry-run", stdin="{}"
    )
    assert result.exit_code == 1
    assert "/optimizer/lr: is negative" in result.stderr


def test_a_dry_run_of_a_job_without_first_values_is_refused_as_its_submission_is(run: Run) -> None:
    lacking = DRY.model_copy(update={"lacking": "parameter 'w' has no first value of its own"})
    result = run(answers(lacking), "submit", "-", "--dry-run", stdin="{}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "parameter 'w' has no first value" in result.stderr
    assert repr(lacking).endswith("parameter 'w' has no first value of its own>")


def test_programs_of_a_job_file_are_a_dry_run(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text("{}")
    assert run(answers(DRY), "programs", str(path)).stdout == "train:\n  FetchRows\n"
    assert json.loads(run(answers(DRY), "programs", str(path), "-o", "json").stdout) == {"train": []}
    assert run(answers(DRY), "programs", "-", stdin="{}").stdout == "train:\n  FetchRows\n"
    memory = run(answers(DRY), "programs", str(path), "--memory").stdout
    assert "training step 3.0 MiB" in memory
    assert "FetchRows" not in memory
    missing = run(answers(DRY), "programs", str(tmp_path / "none.json"))
    assert missing.exit_code == 2
    assert missing.stderr == f"weft: there is no file {tmp_path / 'none.json'}\n"


def test_passes_of_a_job_and_of_a_job_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text("{}")
    told = DRY.model_copy(update={"passes": "fusion  9 → 7 nodes"})
    for more, passes in (([], "short"), (["full"], "full")):
        script = answers(told)
        assert run(script, "programs", str(path), "--passes", *more).stdout == "fusion  9 → 7 nodes\n"
        assert script.requests[0].url.params["passes"] == passes
        script = answers(job(), httpx.Response(200, text="fusion\n"))
        assert run(script, "programs", "job-1", *more, "--passes").stdout == "fusion\n"
        assert script.requests[1].url.params["format"] == ("passes" if passes == "short" else "passes-full")
    for arguments, message in (
        (["full"], "weft programs JOB --passes full"),
        (["half", "--passes"], "--passes takes no value or full, not 'half'"),
        (["--passes", "-o", "json"], "goes without -o json"),
        (["--passes", "--memory"], "goes without --memory"),
    ):
        result = run(answers(), "programs", "job-1", *arguments)
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_a_dry_run_is_shown_without_its_programs() -> None:
    assert repr(DRY) == str(DRY)
    assert repr(DRY) == (
        "<DryRun lines: 500 steps, workers=2, shards=2; a worker's step takes 3,145,728 bytes, parameters and state "
        "3,145,728, tables up to 201,326,592; needs 2 workers, 1 is there>"
    )


def test_memory_of_a_submitted_job_is_wrong_usage(run: Run) -> None:
    result = run(answers(job()), "programs", "job-1", "--memory")
    assert result.exit_code == 2
    assert "--memory is for job files" in result.stderr


def test_a_job_file_begins_with_another_job_or_with_a_file(run: Run, tmp_path: Path) -> None:
    script = answers(problem(404, "unknown-job"), JobPage(jobs=[job("job-77")]), job())
    run(script, "submit", "-", "--init-from", "job-7", stdin='{"name": "lines"}')
    assert script.body() == {"name": "lines", "init_from": {"job": "job-77"}}
    path = tmp_path / "first.safetensors"
    save_file({"a": np.zeros(2, np.float32)}, path)
    script = answers(UPLOADED, job())
    run(script, "submit", "-", "--init-from", str(path), stdin='{"name": "lines", "init_from": {"job": "x"}}')
    assert script.requests[0].url.path == "/v1/uploads"
    assert script.body() == {"name": "lines", "init_from": {"upload": "up-1"}}


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_beginning_needs_a_job_that_is_an_object(run: Run, text: str) -> None:
    script = answers(job())
    result = run(script, "submit", "-", "--init-from", "job-7", stdin=text)
    assert result.exit_code == 2
    assert "standard input" in result.stderr
    assert script.requests == []


def test_parameters_are_set_from_numbers_and_files(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1.0, 2.0]))
    script = answers(job(), LISTED, ValuesSet(names=["a"], step=41))
    result = run(script, "params", "set", "job-1", f"a={tmp_path / 'a.npy'}")
    assert result.stdout == "job job-1: a was set after step 41\n"
    np.testing.assert_array_equal(load(script.requests[-1].content)["a"], np.array([1, 2], np.float32), strict=True)
    script = answers(job(), LISTED, ValuesSet(names=["a"], step=0))
    assert json.loads(run(script, "params", "set", "job-1", "a=-0.5", "-o", "json").stdout) == {"set": ["a"], "step": 0}
    np.testing.assert_array_equal(load(script.requests[-1].content)["a"], np.full(2, -0.5, np.float32), strict=True)
    both = ParameterList(parameters=[*LISTED.parameters, LISTED.parameters[0].model_copy(update={"name": "b"})])
    for step, said in (
        (41, "job job-1: a, b were set after step 41\n"),
        (0, "job job-1: a, b were set before the first step\n"),
    ):
        script = answers(job(), both, ValuesSet(names=["a", "b"], step=step))
        assert run(script, "params", "set", "job-1", "a=1", "b=2").stdout == said


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("a", "should be NAME=NUMBER or NAME=FILE.npy"),
        ("=1", "should be NAME=NUMBER or NAME=FILE.npy"),
        ("a=1 a=2", "a is given twice"),
        ("a=nowhere.npy", "is no number, and there is no file /"),
        ("a={}", "is no .npy file"),
        ("b=1", "the job has no parameter 'b'; it has a"),
    ],
)
def test_what_cannot_be_set_is_wrong_usage(run: Run, tmp_path: Path, assignment: str, message: str) -> None:
    path = tmp_path / "pickled.npy"
    np.save(path, np.array([object()]), allow_pickle=True)
    result = run(answers(job(), LISTED), "params", "set", "job-1", *assignment.format(path).split())
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("value", ["nan", "-inf", "{}"])
def test_a_value_that_is_not_finite_is_not_set(run: Run, tmp_path: Path, value: str) -> None:
    np.save(tmp_path / "a.npy", np.array([1.0, np.nan], np.float32))
    result = run(answers(job(), LISTED), "params", "set", "job-1", f"a={value.format(tmp_path / 'a.npy')}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "a: the value is not finite" in result.stderr


def test_a_name_is_set_once(run: Run) -> None:
    assert run(answers(job()), "params", "set", "job-1", "a=1", "a=2").exit_code == 2


def test_a_file_s_parameters_are_set(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"a": np.zeros(2, np.float32)}, path)
    script = answers(job(), ValuesSet(names=["a"], step=3))
    assert "was set after step 3" in run(script, "params", "load", "job-1", str(path)).stdout
    assert script.requests[-1].content == path.read_bytes()


def test_state_is_saved_where_it_is_asked_for(run: Run, tmp_path: Path) -> None:
    document = (save_file({"a": np.zeros(2, np.float32)}, tmp_path / "x"), (tmp_path / "x").read_bytes())[1]
    answer = httpx.Response(200, content=document, headers={"Weft-Step": "5"})
    script = answers(job(), answer)
    result = run(script, "params", "save", "job-1", str(tmp_path / "out.safetensors"), "--state")
    assert "parameters and state of job job-1 after 5 steps" in result.stdout
    assert script.requests[-1].url.params["state"] == "true"


def test_show_tells_the_bytes_of_a_step(run: Run) -> None:
    shown = job(traffic=Traffic(sent_bytes=3 * MIB, received_bytes=6 * MIB))  # 3 steps
    data = {"source": {"path": "points.npz"}, "columns": {}}
    spec = JobSpec.model_validate({"graph": {}, "loss": "loss", "data": data, "run": {"steps": 9}})
    assert "3.0 MiB sent, 6.0 MiB received, 3.0 MiB a step" in run(answers(shown, spec), "show", "job-1").stdout
    assert "traffic" not in run(answers(job(), spec), "show", "job-1").stdout


def test_sizes_are_in_the_largest_unit() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1536, 5 << 30, 2 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB", "2.0 TiB",
    ]  # fmt: skip


def test_the_client_of_a_dry_run_is_a_call_of_its_own() -> None:
    x = weft.input("x", ("batch", 3))
    spec = weft.job_spec(weft.ops.reduce_mean(weft.nn.Linear(3, 1)(x)), data="points.npz", steps=1)
    script = answers(DRY)
    assert script.client().dry_run(spec) == DRY
    assert script.body()["loss"] == spec.loss
