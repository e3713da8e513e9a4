"""The command line: what it prints, and its exit codes."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import typer
from click.testing import Result
from rich.console import Console
from safetensors.numpy import load_file, save
from typer.main import get_command
from typer.testing import CliRunner

import weft
from sdk_fakes import START, Script, answers, event, job, problem, sse, states, stream, unavailable
from weft.api.agent import AgentInfo, AgentKind, AgentList
from weft.api.event import EventPage, LogLine, MetricTaken, StateChanged
from weft.api.job import JobPage, JobSpec, ParameterInfo, ParameterList, Progress
from weft.api.lifecycle import AgentState, JobState
from weft.cli import jobs as jobs_module
from weft.cli import parameters as parameters_module
from weft.cli import programs as programs_module
from weft.cli import render, up
from weft.cli import traces as traces_module
from weft.cli.app import COMMANDS, app
from weft.cli.options import Format

Run = Callable[..., Result]
JOB: dict[str, Any] = {
    "graph": {},
    "loss": "loss",
    "data": {"source": {"type": "numpy", "path": "points.npz"}, "columns": {}},
    "run": {"steps": 9},
}
"""A job that nothing looks into."""
SPEC = JobSpec.model_validate(JOB)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line against a script of answers."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # messages then say `weft`
    monkeypatch.delenv("WEFT_URL", raising=False)

    def run_(script: Script, *arguments: str, stdin: str | None = None) -> Result:
        def client(url: str | None = None) -> weft.Client:
            return script.client()

        monkeypatch.setattr(jobs_module, "Client", client)
        monkeypatch.setattr(traces_module, "Client", client)
        monkeypatch.setattr(parameters_module, "Client", client)
        monkeypatch.setattr(programs_module, "Client", client)
        return CliRunner().invoke(app, arguments, input=stdin, catch_exceptions=False)

    return run_


def test_no_server_is_exit_code_3_and_one_message(run: Run) -> None:
    result = run(answers(unavailable), "jobs")
    assert result.exit_code == 3
    assert result.stdout == ""
    told, error = result.stderr.splitlines()
    assert told == "no answer from http://127.0.0.1:8470 yet; trying again"
    assert error.startswith("weft: no server at http://127.0.0.1:8470 (Connection refused)")
    assert error.endswith("; start one with: weft up, or wait if one is starting")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [["watch", "job-1"], ["logs", "-f", "job-1"]])
def test_following_bears_a_server_that_is_away_when_it_begins(run: Run, arguments: list[str]) -> None:
    end = stream(sse(states("running", "succeeded")))
    script = answers(*[unavailable] * 20, job(), end, job(state=JobState.SUCCEEDED))
    result = run(script, *arguments)
    assert result.exit_code == 0
    assert "succeeded" in result.stdout
    assert result.stderr.splitlines() == [
        "no answer from http://127.0.0.1:8470 yet; trying again",
        "no answer from http://127.0.0.1:8470; waiting up to 30 s for the server to be back",
    ]
    assert run(answers(unavailable), *arguments).exit_code == 3


def test_the_end_of_weft_up_names_the_jobs_that_end_with_it() -> None:
    assert up._stopping([]) == "stopping"
    assert (
        up._stopping([job("a")])
        == "stopping; 1 job still runs, and goes on with the next `weft up` here, from the last snapshot: a (digits)"
    )
    assert up._stopping([job(name) for name in "abcd"]) == (
        "stopping; 4 jobs still run, and go on with the next `weft up` here, from the last snapshot: "
        "a (digits), b (digits), c (digits), ..."
    )


def test_the_end_of_weft_up_asks_for_jobs_that_hold_agents_and_waits_for_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = answers(JobPage(jobs=[job("a")]), unavailable)
    monkeypatch.setattr(up, "Client", lambda _url, **settings: script.client(retry=settings["retry"]))
    assert [each.id for each in up._running("")] == ["a"]
    assert script.requests[0].url.params.get_list("state") == [
        "starting", "running", "finishing", "recovering", "stopping", "scaling"
    ]  # fmt: skip
    assert up._running("") == []
    assert len(script.requests) == 2


def commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    for name, each in group.commands.items():
        yield from commands(each, *path, name) if hasattr(each, "commands") else [(" ".join((*path, name)), each)]


def test_every_command_prints_json_too() -> None:
    named = dict(commands(get_command(app)))
    assert {"jobs", "up", "down", "token rm", "params get"} <= set(named)
    assert [name for name, each in named.items() if not any("-o" in option.opts for option in each.params)] == []


def test_help_lists_every_command_that_there_is_and_loads_none() -> None:
    listed = {name: module for named in COMMANDS.values() for name, (module, _) in named.items()}
    for module in set(listed.values()):
        made = typer.Typer()
        importlib.import_module(f"weft.cli.{module}").add_to(made)
        made.callback()(lambda: None)
        assert set(get_command(made).commands) == {name for name, of in listed.items() if of == module}
    program = """
import sys
from weft.cli import main
try:
    main()
except SystemExit:
    print(sorted({"httpx", "numpy", "pydantic", "rich.console", "weft.client"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=True)
    assert "  doctor    Check this machine and the server.\n" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("device", ["gpu", "cuda", "cuda:0,cuda:1"])
def test_up_names_the_devices_that_there_are(device: str) -> None:
    result = CliRunner().invoke(app, ["up", "--device", device])
    assert result.exit_code == 2
    assert "is none of cpu, auto, cuda:0" in " ".join(result.output.replace("│", " ").split())


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"weft {version('weft')}\n"


def test_scripts_are_told_where_a_cluster_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    up._greet(weft.Cluster(1, 2, data_root=tmp_path), "http://127.0.0.1:1", tmp_path, Format.JSON, detached=True)
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "url": "http://127.0.0.1:1", "directory": str(tmp_path), "data_root": str(tmp_path), "workers": 1, "shards": 2
    }  # fmt: skip


HTML = httpx.Response(200, text="<html>\n<body>a proxy's page</body>\n</html>")


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ([HTML], ["jobs"], "/v1/jobs?limit=100 answered 200 with what is no JobPage: Invalid JSON"),
        ([job(), HTML], ["show", "a"], "answered 200 with what is no JobSpec: Invalid JSON"),
        ([job(), HTML], ["submit", "a"], "/v1/jobs/job-1/spec answered 200 with what is no JSON"),
        ([job(), HTML], ["programs", "a", "-o", "json"], "/v1/jobs/job-1/programs answered 200 with what is no JSON"),
        ([job(), HTML], ["trace", "a", "-o", "x.json"], "answered 200 with what is no JobTrace: Invalid JSON"),
        ([httpx.Response(500, text=HTML.text)], ["agents"], "/v1/agents answered 500 Internal Server Error"),
        ([httpx.Response(418, text="short\nand\nstout")], ["agents"], "answered 418 I'm a teapot: short and stout"),
        ([httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"no gzip"))], ["agents"],
         "the answer of http://127.0.0.1:8470 cannot be read: "),
        ([job(), stream(then=httpx.ReadError("reset")), unavailable], ["watch", "a"], "no server at http://127.0.0.1:8470"),
        ([job()], ["params", "save", "a", "/nowhere/x.safetensors"], "weft: /nowhere: No such file or directory"),
        ([job()], ["submit", "./"], "weft: /"),
        ([lambda _: 1 / 0], ["agents"], "ZeroDivisionError: division by zero; this is a defect of weft"),
    ],
)  # fmt: skip
def test_whatever_goes_wrong_is_one_sentence(run: Run, script: Any, arguments: list[str], message: str) -> None:
    result = run(answers(*script), *arguments)
    assert result.exit_code == (3 if "no server" in message else 1)
    *notices, told = result.stderr.splitlines()
    assert told.startswith("weft: ")
    assert message in told
    assert all(notice.startswith("no answer from ") for notice in notices)


def test_ctrl_c_ends_a_command_without_a_traceback(run: Run) -> None:
    def interrupted(_request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    result = run(answers(job(), interrupted), "logs", "-f", "a")
    assert (result.exit_code, result.output) == (130, "")


def test_a_defect_is_shown_where_it_lies_if_that_is_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run(answers(lambda _: 1 / 0), "agents")


@pytest.mark.parametrize("arguments", [["submit", "--help"], ["doctor"]])
def test_output_that_nobody_reads_ends_the_command_without_a_word(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", "from weft.cli import main; main()", *arguments], stdout=write, stderr=subprocess.PIPE,
        check=False, timeout=60,
    )  # fmt: skip
    os.close(write)
    assert done.stderr == b""


@pytest.mark.parametrize(("words", "told"), [(["show"], "ID"), (["params", "save"], "ID ")])
def test_the_line_of_usage_names_arguments_plainly(words: list[str], told: str) -> None:
    usage = CliRunner().invoke(app, [*words, "--help"]).stdout.partition("\n")[0]
    assert f"{words[-1]} [OPTIONS] {told}" in usage
    assert "{" not in usage


def test_a_url_that_is_none_is_wrong_usage() -> None:
    result = CliRunner().invoke(app, ["jobs", "--url", "nonsense"])
    assert result.exit_code == 2
    assert "'nonsense' is no URL" in result.stderr


def test_no_jobs_says_how_to_make_one(run: Run) -> None:
    result = run(answers(JobPage(jobs=[])), "jobs")
    assert result.exit_code == 0
    assert "weft submit" in result.stdout
    assert "weft jobs" in run(answers(JobPage(jobs=[])), "jobs", "--state", "failed").stdout


def test_jobs_are_a_table_and_a_document_for_scripts(run: Run) -> None:
    page = JobPage(jobs=[job("abc", metrics={"evaluate/accuracy": 0.98, "train/loss": 0.1}), job("def")])
    lines = run(answers(page), "jobs").stdout.splitlines()
    assert lines[0].split() == ["id", "name", "state", "step", "age", "metrics"]
    (row, other) = (line.rstrip().split("  ") for line in lines[2:])
    assert [row[0], row[1], row[2], row[3], row[-1]] == ["abc", "digits", "running", "3/10", "eval accuracy 0.9800"]
    assert [*other[:4], other[-1]] == ["def", "digits", "running", "3/10", "-"]
    assert JobPage.model_validate_json(run(answers(page), "jobs", "-o", "json").stdout) == page
    sized = JobPage(jobs=[job("abc", file_bytes=3 << 20), job("def")])
    heading, _, row, other = run(answers(sized), "jobs").stdout.splitlines()
    assert (heading.split()[5], row.split()[-2], other.split()[-2]) == ("size", "3.0M", "-")


def test_the_list_of_jobs_has_a_limit(run: Run) -> None:
    script = answers(JobPage(jobs=[job("abc"), job("def")], next="2"))
    document = run(script, "jobs", "-n", "1", "-o", "json").stdout
    assert [each["id"] for each in json.loads(document)["jobs"]] == ["abc"]
    assert len(script.requests) == 1


def test_submit_sends_the_file_as_it_is_and_says_what_is_next(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text('{"name": "mine"}')
    script = answers(job(state=JobState.PENDING, reason="needs 5 workers"))
    result = run(script, "submit", str(path))
    assert result.exit_code == 0
    assert script.requests[0].content == b'{"name": "mine"}'
    assert "job job-1 (digits) is pending: needs 5 workers" in result.stdout
    assert "weft watch job-1" in result.stdout


def test_submit_reads_standard_input(run: Run) -> None:
    script = answers(job())
    result = run(script, "submit", "-", "-o", "json", stdin='{"name": "piped"}')
    assert script.requests[0].content == b'{"name": "piped"}'
    assert json.loads(result.stdout)["id"] == "job-1"


@pytest.mark.parametrize("name", ["none.json", "none.jsn"])
def test_a_file_that_is_missing_is_wrong_usage(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(answers(job()), "submit", name)
    assert (result.exit_code, result.stderr) == (2, f"weft: there is no file {tmp_path / name}\n")


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        (["--set", "optimizer.lr=0.5", "--set", "epochs=3"],
         {"optimizer": {"name": "sgd", "lr": 0.5}, "run": {"epochs": 3}}),
        (["--set", "optimizer.name=adam", "--set", "eps=1"], {"optimizer": {"name": "adam", "eps": 1}}),
        (["--set", "optimizer=adam"], {"optimizer": {"name": "adam"}}),
        (["--set", "optimizer=adam", "--set", "eps=1"], {"optimizer": {"name": "adam", "eps": 1}}),
        (["--set", "lr.schedule=cosine"], {"optimizer": {"name": "sgd", "lr": {"schedule": "cosine"}}}),
        (["--set", "name=7", "--set", "precision=float16"], {"name": "7", "precision": "float16"}),
        (["--set", 'metrics={"a": "b"}', "--set", "metrics.c=1"], {"metrics": {"a": "b", "c": 1}}),
        (["--set", "clip_norm=null", "--set", "run.steps=1", "--set", "run.epochs=null"],
         {"clip_norm": None, "run": {"steps": 1, "epochs": None}}),
        (["--lr", "0.1", "--epochs", "2", "--workers", "3", "--name", "it"],
         {"optimizer": {"name": "sgd", "lr": 0.1}, "run": {"epochs": 2}, "parallelism": {"workers": 3}, "name": "it"}),
    ],
)  # fmt: skip
def test_any_field_of_a_job_file_is_set(run: Run, arguments: list[str], sent: dict[str, Any]) -> None:
    script = answers(job())
    assert run(script, "submit", "-", *arguments, stdin=json.dumps(JOB)).exit_code == 0
    assert json.loads(script.requests[0].content) == {**JOB, **sent}


def test_a_field_of_the_graph_is_set(run: Run) -> None:
    written = {**JOB, "graph": {"nodes": [{"op_type": "Relu", "inputs": ["x"]}]}}
    script = answers(job())
    run(script, "submit", "-", "--set", "graph.nodes.0.op_type=Tanh", stdin=json.dumps(written))
    assert json.loads(script.requests[0].content)["graph"]["nodes"] == [{"op_type": "Tanh", "inputs": ["x"]}]


def test_a_field_inside_a_list_is_set(run: Run) -> None:
    written = {**JOB, "optimizer": {"name": "sgd", "multipliers": [{"keys": "*.bias"}]}}
    script = answers(job())
    run(script, "submit", "-", "--set", "optimizer.multipliers.0.lr=2", stdin=json.dumps(written))
    assert json.loads(script.requests[0].content)["optimizer"]["multipliers"] == [{"keys": "*.bias", "lr": 2}]
    refused = run(script, "submit", "-", "--set", "optimizer.multipliers.1.lr=2", stdin=json.dumps(written))
    assert "optimizer.multipliers is a list of 1, and '1' is none of them" in refused.stderr


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("epoch=3", "a job has no such field; did you mean 'epochs'?"),
        ("learning_rate=3", "a job has no such field; did you mean 'lr'?"),
        ("optimizer.learning_rate=3", "optimizer has no field 'learning_rate'; did you mean 'lr'?"),
        ("learnrate=3", "a job has no such field; did you mean 'lr'?"),
        ("optimizer.learnrate=3", "optimizer has no field 'learnrate'; did you mean 'lr'?"),
        ("optmizer.lr=3", "a job has no such field; did you mean 'optimizer'?"),
        ("optimizer.beta=1", "optimizer has no field 'beta'; it has name, lr, momentum, dampening, weight_decay"),
        ("lr.schedul=cosine", "optimizer.lr has no field 'schedul'; did you mean 'schedule'?"),
        ("steps=many", "--set run.steps=many: this is no integer or null"),
        ("data=rows.npz", "data is a record; set its fields, like --set data.source.path=..."),
        ("shuffle=1", "--set data.shuffle=1: this is no boolean"),
        ("seed=true", "--set seed=true: this is no integer"),
        ("lr", "--set 'lr': write it like optimizer.lr=0.01"),
        ("lr=NaN", "--set optimizer.lr=NaN: this is no number"),
        ("lr=1e400", "--set optimizer.lr=1e400: the number is too large"),
        ("lr=" + 100_000 * "[", "--set optimizer.lr: the value is nested too deeply"),
        ('name="\\ud800"', "--set name: the value has a character that is no Unicode"),
        ('run={"steps":5,"steps":6}', "--set run: an object has the key 'steps' twice: keep one of them"),
    ],
)
def test_a_field_that_a_job_does_not_have_is_wrong_usage(run: Run, assignment: str, message: str) -> None:
    script = answers(job())
    result = run(script, "submit", "-", "--set", assignment, stdin=json.dumps(JOB))
    assert (result.exit_code, script.requests) == (2, [])
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_job_that_waits_says_how_to_cancel_it(run: Run) -> None:
    waits = answers(job(state="pending", reason="2 workers are busy"))
    assert run(waits, "submit", "-", stdin=json.dumps(JOB)).output.endswith("cancel it with: weft cancel job-1\n")


def test_a_data_file_is_no_job(run: Run) -> None:
    result = run(answers(job()), "submit", "shop.csv")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "shop.csv is neither a job file, which is JSON, nor an ONNX file" in result.stderr


def test_a_job_is_submitted_once_more_by_its_id(run: Run) -> None:
    written = {**JOB, "of_a_newer_server": 1}
    script = answers(job(state=JobState.FAILED), httpx.Response(200, json=written), job("job-2"))
    assert "job job-2 (digits)" in run(script, "submit", "job-1", "--set", "optimizer.lr=0.001").stdout
    assert script.requests[1].url.path == "/v1/jobs/job-1/spec"
    assert json.loads(script.requests[2].content) == {**written, "optimizer": {"name": "sgd", "lr": 0.001}}


def test_a_refused_job_shows_every_pointer(run: Run) -> None:
    errors: list[dict[str, Any]] = [
        {"pointer": "/graph/nodes/0", "detail": "[B] inner dimensions differ", "node": "fc1"},
        {"pointer": "/data/columns/y", "detail": "there is no column 'y'"},
    ]
    result = run(answers(problem(422, "job-refused", "the job is refused", errors)), "submit", "-", stdin="{}")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "weft: the job is refused",
        "  /graph/nodes/0 (fc1): [B] inner dimensions differ",
        "  /data/columns/y: there is no column 'y'",
        "to feed 'y' from another column: --set data.columns.y=COLUMN",
    ]


def test_watching_a_job_to_its_good_end_is_0_and_to_a_bad_one_is_1(run: Run) -> None:
    good = answers(job(), stream(sse(states("pending", "running", "succeeded"))), job(state=JobState.SUCCEEDED))
    result = run(good, "submit", "-", "--watch", "-o", "json", stdin="{}")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["id"] == "job-1"
    assert "succeeded" in result.stderr
    bad = answers(job(), stream(sse(states("failed"))), job(state=JobState.FAILED, reason="worker 1 was lost"))
    result = run(bad, "submit", "-", "-w", stdin="{}")
    assert result.exit_code == 1
    assert "weft: job job-1 (digits) failed: worker 1 was lost" in result.stderr
    assert "weft logs job-1" in result.stderr


def test_waiting_ends_with_the_state_that_is_waited_for(run: Run) -> None:
    done = job(state=JobState.SUCCEEDED, started_at=START)
    waited = run(answers(job(state=JobState.PENDING), job(), unavailable, done), "wait", "job-1")
    assert (waited.exit_code, waited.stdout) == (0, "job job-1 (digits) has succeeded\n")
    started = answers(job(state=JobState.PENDING), job(state=JobState.STARTING), job(started_at=START))
    assert run(started, "wait", "job-1", "--for", "running").stdout == "job job-1 (digits) is running\n"
    assert run(answers(done), "wait", "job-1", "--for", "running").exit_code == 0
    document = run(answers(job(state=JobState.FAILED)), "wait", "job-1", "--for", "ended", "-o", "json").stdout
    assert json.loads(document)["state"] == "failed"


@pytest.mark.parametrize(
    ("ended", "arguments", "message"),
    [
        (job(state=JobState.FAILED, reason="a shard was lost"), [], "job job-1 (digits) failed: a shard was lost"),
        (
            job(state=JobState.SUCCEEDED),
            ["--for", "failed"],
            "job job-1 (digits) has succeeded; it cannot become failed any more: weft logs job-1 says what led to it",
        ),
        (
            job(state=JobState.CANCELLED),
            ["--for", "running"],
            "job job-1 (digits) was cancelled; it cannot become running any more: weft logs job-1 says what led to it",
        ),
        (job(), ["--timeout", "5s"], "job job-1 (digits) is still running after 5 s; it goes on"),
    ],
)
def test_waiting_in_vain_is_one_sentence(run: Run, ended: Any, arguments: list[str], message: str) -> None:
    result = run(answers(job(), ended), "wait", "job-1", *arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"weft: {message}\n")


@pytest.mark.parametrize(
    ("word", "own"),
    [
        ("get", "jobs"),
        ("describe", "show"),
        ("delete", "rm"),
        ("apply", "submit"),
        ("kill", "cancel"),
        ("help", "--help"),
        ("version", "--version"),
        ("shards", "agents"),
        ("metrics", "show"),
    ],
)
def test_a_command_of_another_program_is_answered_by_wefts(run: Run, word: str, own: str) -> None:
    result = run(answers(job()), word, "job-1", "-o", "wide")
    assert result.exit_code == 2
    assert f"Error: weft has no command {word!r}; did you mean {own!r}?\n" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["wait", "job-1", "--for", "done"], "Invalid value for '--for': 'done' is not one of 'running', 'ended'"),
        (["jobs", "--limit", "many"], "Invalid value for '--limit' / '-n': it should be a valid integer\n"),
    ],
)
def test_a_wrong_value_of_an_option_is_a_plain_sentence(run: Run, arguments: list[str], message: str) -> None:
    result = run(answers(job()), *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_show_says_all_there_is(run: Run) -> None:
    ended = START + timedelta(seconds=75)
    metrics = {"evaluate/accuracy": 0.98}
    finished = job(
        state=JobState.SUCCEEDED,
        metrics=metrics,
        started_at=START,
        ended_at=ended,
        devices=["cuda:0 NVIDIA H100", "cpu"],
    )
    data = {"source": {"path": "points.npz"}, "columns": {}, "batch_size": 8, "evaluate": {"start": 3, "stop": 9}}
    adam = {"name": "adam", "lr": {"schedule": "cosine", "start": 0.1, "steps": 100}, "betas": [0.8, 0.9]}
    spec = JobSpec.model_validate({**JOB, "data": data, "optimizer": adam})
    out = run(answers(finished, spec), "show", "job-1").stdout
    for part in (
        "job-1",
        "succeeded",
        "evaluate/accuracy",
        "0.98",
        "3/10",
        "1m 15s",
        "2 workers, 2 shards device cuda:0 NVIDIA H100, cpu created",
        "weft params save",
        " optimizer adam, betas (0.8, 0.9) lr cosine, start 0.1, end 0, steps 100, begin 0 batch",
        " batch size 8 data points.npz; evaluated on rows 3 to 9 on 2 workers",
    ):
        assert part in re.sub(r"\s+", " ", out)
    plain = re.sub(r"\s+", " ", run(answers(finished, SPEC), "show", "job-1").stdout)
    assert " optimizer sgd lr 0.001 batch size 64 data points.npz on " in plain
    assert json.loads(run(answers(finished), "show", "job-1", "-o", "json").stdout)["state"] == "succeeded"


def test_a_job_that_failed_while_it_ran_is_shown_with_the_next_step(run: Run) -> None:
    failed = job(state=JobState.FAILED, reason="a shard was lost", started_at=START, ended_at=START)
    out = run(answers(failed, SPEC), "show", "job-1").stdout
    assert "weft logs job-1" in out
    assert "run it again: weft submit job-1; --set lr=0.001 changes a field of it" in out
    spec = JobSpec.model_validate(JOB)
    told = run(answers(failed, spec), "show", "job-1", "--spec").stdout
    assert JobSpec.model_validate_json(told) == spec
    assert "init-from" not in run(answers(job(state=JobState.FAILED), SPEC), "show", "job-1").stdout


@pytest.mark.parametrize("arguments", [["submit"], ["submit", "--dry-run"], ["programs"]])
def test_a_broken_job_file_is_named_with_the_place(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    path, script = tmp_path / "b.json", answers(job())
    for content, said in (
        (b'{\n  "name": "mine",\n}', f"{path}, line 3, column 1: no JSON"),
        (b"", f"{path}, line 1, column 1: no JSON"),
        (b"[1, 2]", f"{path}: a job is a JSON object, not [1, 2]"),
        (b'{"name": "\xff"}', f"{path}: no JSON"),
        (b"[" * 100_000, f"{path}: no JSON"),
        (b'{"a": {"steps": 1, "steps": 2}}', f"{path}: an object has the key 'steps' twice"),
    ):
        path.write_bytes(content)
        result = run(script, *arguments, str(path))
        assert result.exit_code == 2
        assert said in result.stderr
    assert "standard input, line 1, column 2: no JSON" in run(script, *arguments, "-", stdin="{").stderr
    assert script.requests == []


def test_the_beginning_of_an_id_is_enough_where_it_is_the_only_one(run: Run) -> None:
    unknown = problem(404, "unknown-job", "there is no job 'ab'")
    page = JobPage(jobs=[job("abc"), job("def")])
    assert json.loads(run(answers(unknown, page), "show", "ab", "-o", "json").stdout)["id"] == "abc"


def test_an_id_that_fits_many_is_explained(run: Run) -> None:
    result = run(answers(problem(404, "unknown-job"), JobPage(jobs=[job("abc"), job("abd")])), "show", "ab")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("weft: 2 jobs begin with 'ab'; give more of the id:\n  abc  digits  running\n")


def test_logs_print_what_is_there_and_follow_to_the_end(run: Run) -> None:
    events = [
        *states("pending", "running"),
        event(3, MetricTaken(split="evaluate", step=5, values={"loss": 0.5}, samples=360)),
        event(4, LogLine(level="error", source="shard 1", message="[bold]as it is[/bold]")),
    ]
    script = answers(job(), EventPage(events=events, after=4, ended=False), EventPage(events=[], after=4, ended=False))
    out = run(script, "logs", "job-1").stdout
    for part in ("pending", "evaluate at step 5: loss 0.5000  (360 samples)", "shard 1: [bold]as it is[/bold]"):
        assert part in out
    ended = [*events, event(5, states("succeeded")[0].body)]
    followed = run(answers(job(), stream(sse(ended))), "logs", "-f", "-o", "json", "job-1").stdout.splitlines()
    assert [json.loads(line)["seq"] for line in followed] == [1, 2, 3, 4, 5]


def test_logs_print_the_newest_events_unless_all_are_asked_for(run: Run) -> None:
    page = EventPage(events=states("pending", "running")[1:], after=2, ended=False)

    def asked(*arguments: str) -> tuple[str | None, str]:
        script = answers(job(), page)
        result = run(script, "logs", "job-1", *arguments)
        assert (result.exit_code, len(script.requests)) == (0, 2), result.stderr
        return script.requests[1].url.params.get("tail"), result.stderr

    assert asked() == ("50", "1 earlier event; `weft logs job-1 --all` prints all\n")
    assert asked("--tail", "1")[0] == "1"
    assert asked("--all") == asked("--after", "1") == asked("-o", "json") == (None, "")
    followed = answers(job(), stream(sse(states("running", "succeeded"))))
    run(followed, "logs", "-f", "--tail", "7", "job-1")
    assert followed.requests[-1].url.params["tail"] == "7"
    assert run(answers(job()), "logs", "job-1", "--all", "--tail", "1").exit_code == 2


def test_cancel_tells_the_new_state(run: Run) -> None:
    result = run(answers(job(), job(state=JobState.CANCELLED)), "cancel", "job-1")
    assert result.stdout == "job job-1 (digits) was cancelled\n"


def test_cancel_says_from_where_the_job_can_go_on_unless_that_is_discarded(run: Run) -> None:
    cancelled = job(state=JobState.CANCELLED, snapshot=7)
    assert "go on from step 7: weft resume job-1" in run(answers(job(), cancelled), "cancel", "job-1").stdout
    script = answers(job(), job(state=JobState.CANCELLED))
    assert run(script, "cancel", "job-1", "--discard").stdout == "job job-1 (digits) was cancelled\n"
    assert script.requests[-1].url.params["discard"] == "true"


def test_jobs_are_removed_once_that_is_confirmed(run: Run) -> None:
    ended = job(state=JobState.SUCCEEDED, snapshot_bytes=3 << 20, file_bytes=1 << 20, ended_at=START)
    gone = httpx.Response(204)
    script = answers(ended, gone)
    asked = run(script, "rm", "job-1")  # Nobody answers.
    assert (asked.exit_code, len(script.requests), "--yes" in asked.stderr) == (1, 1, True)
    assert "remove 1 job with results, snapshots and logs (4.0 MiB) for ever?" in asked.stdout
    script = answers(ended, ended, gone)
    result = run(script, "rm", "job-1", "job-1", "--yes")
    assert result.stdout.splitlines() == [
        "job job-1 (digits) has succeeded, 4.0 MiB",
        "removed 1 job with results, snapshots and logs (4.0 MiB)",
    ]
    assert [each.method for each in script.requests] == ["GET", "GET", "DELETE"]
    assert "end it first: weft cancel job-1" in run(answers(job()), "rm", "job-1", "-y").stderr


def test_removing_and_watching_tell_scripts_no_more_than_the_answer(run: Run) -> None:
    ended = job(state=JobState.SUCCEEDED)
    asked = run(answers(ended), "rm", "job-1", "-o", "json")
    assert (asked.exit_code, asked.stdout) == (2, "")
    assert "-o json asks nothing: add --yes" in asked.stderr
    removed = run(answers(ended, httpx.Response(204)), "rm", "job-1", "-y", "-o", "json")
    assert json.loads(removed.stdout) == {"removed": ["job-1"]}
    watched = run(answers(job(), stream(sse(states("succeeded"))), ended), "watch", "job-1", "-o", "json")
    assert json.loads(watched.stdout)["state"] == "succeeded"
    assert "succeeded" in watched.stderr


def test_jobs_that_ended_long_ago_are_removed_together(run: Run) -> None:
    old = job("old", state=JobState.FAILED, ended_at=START)
    new = job("new", state=JobState.SUCCEEDED, ended_at=render.now())
    script = answers(JobPage(jobs=[new, old]), httpx.Response(204))
    assert run(script, "rm", "--older-than", "30d", "-y").exit_code == 0
    assert [each.url.path for each in script.requests[1:]] == ["/v1/jobs/old"]
    told = run(answers(JobPage(jobs=[new])), "rm", "--older-than", "12h").stdout
    assert told == "no job ended more than 12h ago; `weft jobs` lists all\n"
    assert "or --older-than, not both" in run(answers(), "rm", "job-1", "--older-than", "3d").stderr
    assert "'soon' is not like 30d" in run(answers(), "rm", "--older-than", "soon").stderr
    assert run(answers(), "rm").exit_code == 2


def test_stop_says_that_the_job_stops(run: Run) -> None:
    result = run(answers(job(), job(reason="it stops at its next snapshot, by alice")), "stop", "job-1")
    assert result.stdout == "job job-1 (digits) is running: it stops at its next snapshot, by alice\n"


def test_a_job_is_resumed_with_what_is_said_and_the_new_one_is_told(run: Run) -> None:
    spec = JobSpec.model_validate(JOB)
    script = answers(job(state=JobState.FAILED), spec, job(id="job-2", state=JobState.PENDING))
    result = run(script, "resume", "job-1", "--steps", "90", "--workers", "3")
    assert result.stdout.splitlines()[0] == "job job-2 (digits) is pending"
    sent = JobSpec.model_validate_json(script.requests[-1].content)
    assert (sent.resume, sent.run.steps, sent.parallelism.workers) == ("job-1", 90, 3)
    script = answers(job(state=JobState.FAILED), spec, job(id="job-2", state=JobState.PENDING))
    run(script, "resume", "job-1", "--steps", "90", "--set", "on_nan=go_on", "--set", "data.batch_size=8")
    sent = JobSpec.model_validate_json(script.requests[-1].content)
    assert (sent.resume, sent.run.steps, sent.on_nan, sent.data.batch_size) == ("job-1", 90, "go_on", 8)
    wrong = run(answers(job(state=JobState.FAILED), spec), "resume", "job-1", "--set", "epoch=3")
    assert "did you mean 'epochs'?" in wrong.stderr


def test_a_job_that_ended_shows_how_to_go_on(run: Run) -> None:
    shown = run(answers(job(state=JobState.FAILED, started_at=START, snapshot=40), SPEC), "show", "job-1").stdout
    assert "go on from step 40: weft resume job-1" in shown
    assert "init-from" not in shown
    done = job(state=JobState.SUCCEEDED, started_at=START, snapshot=10, progress=Progress(step=10, steps=10, epoch=2))
    assert "train it longer: weft resume job-1 --steps 20\n" in run(answers(done, SPEC), "show", "job-1").stdout
    of_epochs = JobSpec.model_validate({**JOB, "run": {"epochs": 2}})
    assert "train it longer: weft resume job-1 --epochs 4\n" in run(answers(done, of_epochs), "show", "job-1").stdout
    lr = {"schedule": "cosine", "start": 0.1, "steps": 8, "warmup": {"steps": 2}}
    spent = JobSpec.model_validate({**JOB, "optimizer": {"name": "sgd", "lr": lr}})
    out = run(answers(done, spent), "show", "job-1").stdout
    assert "train it longer, its schedule has ended: weft resume job-1 --steps 20 --lr LR\n" in out
    assert "cosine, start 0.1, end 0, steps 8, begin 0, warmup (steps 2, start 0)" in out
    assert re.search(r"snapshot +step 10 *$", out, re.MULTILINE), "none of its own, so of no size"


def test_when_a_job_stops_is_said_with_metric_and_patience(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(JOB))
    script = answers(job())
    assert run(script, "submit", str(path), "--stop-when", "accuracy:3:max").exit_code == 0
    assert script.body()["stop_when"] == {"metric": "accuracy", "patience": 3, "mode": "max"}
    for wrong in ("accuracy", "accuracy:x", ":3", "accuracy:3:most"):
        assert "is not like loss:3" in run(answers(job()), "submit", str(path), "--stop-when", wrong).stderr


def test_by_what_the_best_is_kept_is_said_with_a_metric(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(JOB))
    script = answers(job())
    assert run(script, "submit", str(path), "--keep-best", "accuracy:max").exit_code == 0
    assert script.body()["keep_best"] == {"metric": "accuracy", "mode": "max"}
    assert "is not like loss or" in run(answers(job()), "submit", str(path), "--keep-best", "a:b").stderr


def test_a_submission_says_what_it_begins_with(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(JOB))
    begun = job(state=JobState.PENDING, beginning="starts with the parameters of job a")
    out = run(answers(begun), "submit", str(path)).stdout.splitlines()
    assert out[1] == "it starts with the parameters of job a"


def test_a_job_that_recovered_says_how_often(run: Run) -> None:
    plain = [re.sub(r"\s+", " ", run(answers(job(restarts=n), SPEC), "show", "job-1").stdout) for n in (0, 2)]
    assert "step 3/10, epoch 1; recovered 2 of at most 10 times" in plain[1]
    assert "recovered" not in plain[0]


def test_a_job_is_scaled_by_one_line(run: Run) -> None:
    told = job(reason="goes on with 4 workers, 2 shards from its next snapshot on")
    script = answers(job(), told)
    out = run(script, "scale", "job-1", "--workers", "4").stdout
    assert out == "job job-1 (digits) is running: goes on with 4 workers, 2 shards from its next snapshot on\n"
    assert (script.requests[-1].url.path, script.body()) == ("/v1/jobs/job-1/scale", {"workers": 4})
    assert "give workers or shards" in run(answers(job()), "scale", "job-1").stderr
    assert (
        run(answers(job(), job()), "scale", "job-1", "--workers", "2").stdout
        == "job job-1 (digits) has 2 workers, 2 shards already; nothing changes\n"
    )


def test_cancelling_an_ended_job_is_a_refusal(run: Run) -> None:
    result = run(answers(job(), problem(409, "wrong-state", "job job-1 has succeeded")), "cancel", "job-1")
    assert (result.exit_code, result.stderr) == (1, "weft: job job-1 has succeeded\n")


def test_programs_come_as_text_and_as_json(run: Run) -> None:
    assert (
        run(answers(job(), httpx.Response(200, text="train:\n  Fetch")), "programs", "job-1").stdout
        == "train:\n  Fetch\n"
    )
    assert json.loads(
        run(answers(job(), httpx.Response(200, json={"a": [1]})), "programs", "job-1", "-o", "json").stdout
    ) == {"a": [1]}


def test_agents_are_a_table_and_none_says_what_starts_some(run: Run) -> None:
    agent = AgentInfo(
        id="a1", kind=AgentKind.SHARD, name="shard-0", pid=7, state=AgentState.ALIVE,
        registered_at=START, silent_s=0.3, jobs=["job-1"],
    )  # fmt: skip
    out = run(answers(AgentList(agents=[agent])), "agents").stdout
    for part in ("shard-0", "shard", "alive", "job-1", "7"):
        assert part in out
    worker = agent.model_copy(update={"name": "worker-0", "kind": AgentKind.WORKER, "device": "cuda:0 NVIDIA H100"})
    _, _, first, second = run(answers(AgentList(agents=[agent, worker])), "agents").stdout.splitlines()
    assert re.search(r"shard-0 +shard +alive +- ", first)
    assert re.search(r"worker-0 +worker +alive +cuda:0 NVIDIA H100 ", second)
    assert "weft up" in run(answers(AgentList(agents=[])), "agents").stdout
    assert json.loads(run(answers(AgentList(agents=[agent])), "agents", "-o", "json").stdout)["agents"][0]["pid"] == 7


def values(array: np.ndarray) -> httpx.Response:
    return httpx.Response(200, content=save({"w": array}), headers={"Weft-Step": "12"})


def test_a_parameter_is_printed_with_its_statistics(run: Run) -> None:
    array = np.array([[1, 2], [3, np.nan]], np.float32)
    lines = run(answers(job(), values(array)), "params", "get", "job-1", "w").stdout.splitlines()
    assert lines == [
        "w  float32[2, 2]  after 12 steps",
        "4 elements  min 1  max 3  mean 2  deviation 0.816497  1 not finite",
        "[[ 1.  2.]",
        " [ 3. nan]]",
    ]


def test_a_parameter_for_scripts_has_every_value(run: Run) -> None:
    document = json.loads(
        run(answers(job(), values(np.arange(3.0))), "params", "get", "job-1", "w", "-o", "json").stdout
    )
    assert document == {"name": "w", "dtype": "float64", "shape": [3], "step": 12, "values": [0, 1, 2]}


def test_parameters_are_listed_and_saved(run: Run, tmp_path: Path) -> None:
    known = ParameterList(parameters=[ParameterInfo(name="fc.weight", dtype="float32", shape=[2, 3], trainable=False)])
    out = run(answers(job(), known), "params", "ls", "job-1").stdout
    assert "fc.weight" in out
    assert "2 x 3" in out
    path = tmp_path / "w.safetensors"
    result = run(answers(job(), values(np.arange(3.0))), "params", "save", "job-1", str(path))
    assert "after 12 steps" in result.stdout
    np.testing.assert_array_equal(load_file(path)["w"], np.arange(3.0))


@pytest.mark.parametrize(
    ("words", "written"), [(["export"], ".onnx or .safetensors"), (["params", "save"], ".safetensors")]
)
def test_a_file_of_another_format_than_its_name_says_is_not_written(
    run: Run, words: list[str], written: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.pt"
    script = answers()
    result = run(script, *words, "job-1", str(path))
    assert result.exit_code == 2
    assert f"{path}: weft writes no .pt files: end the name in {written}." in result.stderr
    assert not script.requests
    assert not path.exists()


def test_a_place_that_cannot_be_written_is_told(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "w.safetensors"
    result = run(answers(job(), values(np.arange(3.0))), "params", "save", "job-1", str(path))
    assert result.exit_code == 1
    assert str(path.parent) in result.stderr
    assert "partial" not in result.stderr
    folder = run(answers(job(), values(np.arange(3.0))), "params", "save", "job-1", str(tmp_path))
    assert folder.exit_code == 2


def test_help_names_the_exit_codes() -> None:
    out = CliRunner().invoke(app, ["--help"]).stdout
    assert "3 no server answered" in " ".join(out.split())


def test_the_help_of_submit_has_options_of_onnx_files_under_their_own_heading() -> None:
    out = CliRunner().invoke(app, ["submit", "--help"]).stdout
    general, of_models = out.split("\nFor an ONNX file:\n")
    assert "--dry-run" in general
    assert "\nFor any job (replaces what a job file says):\n  --steps" in general
    assert "--loss LOSS" in of_models
    assert "--loss LOSS" not in general


def test_further_lines_of_a_text_do_not_look_like_events() -> None:
    bodies = (
        StateChanged(state=JobState.FAILED, reason="lost\n12:00:00  succeeded"),
        LogLine(level="error", source="worker 0", message="lost\n12:00:00  succeeded"),
    )
    for body in bodies:
        first, second = render.event_line(event(1, body)).plain.split("\n")
        assert first.endswith("lost")
        assert second == "          12:00:00  succeeded"


def test_durations_are_read_in_two_units() -> None:
    assert [render.ago(timedelta(seconds=s)) for s in (-1, 0, 61, 3 * 3600 + 59, 90000)] == [
        "0s", "0s", "1m 1s", "3h 0m", "1d 1h",
    ]  # fmt: skip


def test_the_list_of_jobs_says_of_which_rows_metrics_are_and_what_a_job_waits_for(run: Run) -> None:
    page = JobPage(
        jobs=[
            job("abc", metrics={"train/loss": 0.25}),
            job("def", state=JobState.PENDING, reason="needs 5 workers; 2 are registered, 2 are free"),
        ]
    )
    out = run(answers(page), "jobs").stdout
    assert "train loss 0.2500" in out
    assert out.splitlines()[-1] == "job def (digits) is pending: needs 5 workers; 2 are registered, 2 are free"


def test_watch_shows_a_job_from_another_terminal(run: Run) -> None:
    script = answers(job(), stream(sse(states("running", "succeeded"))), job(state=JobState.SUCCEEDED))
    result = run(script, "watch", "job-1")
    assert (result.exit_code, result.stdout.splitlines()) == (
        0,
        ["job job-1 (digits): running, step 3/10", "running", "succeeded"],
    )
    failed = job(state=JobState.FAILED, reason="worker 1 was lost")
    result = run(answers(job(), stream(sse(states("failed"))), failed), "watch", "job-1")
    assert result.exit_code == 1
    assert "weft logs job-1" in result.stdout
    assert (result.stdout + result.stderr).count("worker 1 was lost") == 1


def test_following_the_logs_of_a_waiting_job_says_what_for_beside_them(run: Run) -> None:
    waits = job(state=JobState.PENDING, reason="needs 5 workers")
    script = answers(waits, waits, waits, job(), stream(sse(states("pending", "succeeded"))))
    result = run(script, "logs", "-f", "-o", "json", "job-1")
    assert result.stderr.splitlines() == ["pending: needs 5 workers"]
    assert [json.loads(line)["seq"] for line in result.stdout.splitlines()] == [1, 2]


def test_the_logs_of_a_waiting_job_end_with_what_it_waits_for(run: Run) -> None:
    waits = job(state=JobState.PENDING, reason="needs 5 workers; 2 are free: start 3 more")
    result = run(answers(waits, EventPage(events=states("pending"), after=1, ended=False)), "logs", "job-1")
    assert result.stdout.endswith("pending\n")
    assert result.stderr == f"job job-1 (digits) is pending: {waits.reason}\n"


PROGRAMS = """\
2 parameters of 2.6 KiB in all, on 2 shards and 2 workers, the most urgent first:

  priority  key        type         size     lies in  updated by  before  after
  0         fc.weight  f32[10,64]   2.5 KiB  1 slice  optimizer   1       12

training step: 3 nodes
      → fetch fc.weight
   1  fc = Gemm(image, fc.weight) transB=1                      f32[batch,10]
      ← send fc.weight = %3"""

NARROWED = """\
2 parameters of 2.6 KiB in all, on 2 shards and 2
    workers, the most urgent first:

  priority  key        type         size     lies…
  0         fc.weight  f32[10,64]   2.5 KiB  1 sl…

training step: 3 nodes
      → fetch fc.weight
   1  fc = Gemm(image, fc.weight) transB=1
       f32[batch,10]
      ← send fc.weight = %3"""


def test_a_narrow_terminal_folds_long_lines_and_says_how_to_see_all(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown() -> Result:
        return run(answers(job(), httpx.Response(200, text=PROGRAMS)), "programs", "job-1")

    assert shown().stdout == f"{PROGRAMS}\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert shown().stdout == f"{PROGRAMS}\n"  # 200 columns have room
    monkeypatch.setenv("COLUMNS", "50")
    assert shown().stdout.splitlines() == NARROWED.splitlines()
    assert "weft programs job-1 | less -S" in shown().stderr


def on_screen(text: str) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in text.splitlines()]


def test_80_columns_hold_a_line_for_each_job_and_agent(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    metrics = {"evaluate/loss": 0.0641, "evaluate/accuracy": 0.9806, "train/loss": 0.1}
    listed = [
        job("0123456789abcdef", metrics=metrics, name="source-lines", state=JobState.SUCCEEDED),
        job("1123456789abcdef", metrics=metrics, name="a-name-that-says-all-there-is-to-be-said"),
    ]
    for some in (listed[:1], listed):
        _, _, *lines = on_screen(run(answers(JobPage(jobs=some)), "jobs").stdout)
        assert len(lines) == len(some)
        assert max(map(len, lines)) <= 80
        assert all(line.startswith(each.id) for each, line in zip(some, lines, strict=True))
    assert "source-lines" in lines[0]
    _, _, alone = on_screen(run(answers(JobPage(jobs=listed[:1])), "jobs").stdout)
    assert alone.endswith("eval loss 0.0641 …")
    agents = [
        AgentInfo(
            id=name, kind=AgentKind(name.split("-")[0]), name=name, pid=4194304, state=AgentState.ALIVE,
            registered_at=START, silent_s=0.3, jobs=[each.id for each in listed],
            device="cuda:0 NVIDIA H100 80GB HBM3",
        )
        for name in ("shard-number-0", "worker-number-1")
    ]  # fmt: skip
    _, _, *lines = on_screen(run(answers(AgentList(agents=agents)), "agents").stdout)
    assert len(lines) == 2
    assert max(map(len, lines)) <= 80
    assert all("01234567 +1" in line and line.endswith("4194304") for line in lines)
    monkeypatch.setenv("COLUMNS", "200")
    assert f"{listed[0].id}, {listed[1].id}" in run(answers(AgentList(agents=agents)), "agents").stdout


def test_agents_are_in_the_order_of_kind_and_number(run: Run) -> None:
    names = ["worker-10", "shard-1", "worker-2", "shard-0", "worker-1"]
    agents = [
        AgentInfo(
            id=f"a{n}", kind=AgentKind(name.split("-")[0]), name=name, pid=n, state=AgentState.ALIVE,
            registered_at=START, silent_s=0, jobs=[],
        )
        for n, name in enumerate(names)
    ]  # fmt: skip
    listed = json.loads(run(answers(AgentList(agents=agents)), "agents", "-o", "json").stdout)["agents"]
    assert [agent["name"] for agent in listed] == ["shard-0", "shard-1", "worker-1", "worker-2", "worker-10"]


def test_a_daemon_s_words_are_cut_to_the_terminal_and_ours_are_not() -> None:
    to = Console(file=io.StringIO(), force_terminal=True, width=80)
    assert up._fitted("  error " + "x" * 100, to) == "  error " + "x" * 71 + "…"
    assert up._fitted("x" * 100, to) == "x" * 100
    assert up._fitted("  " + "x" * 100, Console(file=io.StringIO())) == "  " + "x" * 100


HOSTILE = "slot \x1b]0;owned\x07 \x1b[2J failed\x9b31m\u202e"
ESCAPED = r"slot \u001b]0;owned \u001b[2J failed\u009b31m\u202e"
"""rich itself leaves out the bell, and no other."""


@pytest.mark.parametrize(
    "arguments", [["jobs"], ["show", "job-1"], ["watch", "job-1"], ["logs", "job-1"], ["logs", "-f", "job-1"]]
)
def test_what_agents_and_jobs_say_commands_no_terminal(run: Run, arguments: list[str]) -> None:
    failed = job(state=JobState.FAILED, reason=HOSTILE)
    said = [event(1, LogLine(source="worker-0", level="info", message=HOSTILE)), *states("failed")]
    said[1] = event(2, StateChanged(state=JobState.FAILED, reason=HOSTILE))
    listed = JobPage(jobs=[failed]) if arguments == ["jobs"] else failed
    more = (
        stream(sse(said))
        if "-f" in arguments or arguments[0] == "watch"
        else EventPage(events=said, after=2, ended=True)
    )
    more = SPEC if arguments[0] == "show" else more
    result = run(answers(listed, more, failed, failed), *arguments)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", result.output), repr(result.output)
    assert arguments == ["jobs"] or ESCAPED in result.output.replace(r"\u0007", "")


def test_json_and_errors_are_escaped_and_json_stays_json(run: Run) -> None:
    result = run(answers(job(state=JobState.FAILED, reason=HOSTILE)), "show", "-o", "json", "job-1")
    assert json.loads(result.stdout)["reason"] == HOSTILE
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", result.stdout)
    refused = run(answers(problem(409, "wrong-state", HOSTILE)), "cancel", "job-1")
    assert ESCAPED in refused.output.replace(r"\u0007", "")
    assert "\x1b" not in refused.output
