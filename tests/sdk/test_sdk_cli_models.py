"""ONNX files on the command line: what is sent of them, what is said, what is refused before anything is sent."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import Result
from onnx import helper
from safetensors.numpy import load, save
from typer.testing import CliRunner

import weft
from onnx_models import floats, initializer, model, weights
from sdk_fakes import DRY, Script, answers, job, problem
from weft.api.job import JobSpec
from weft.api.values import STEP_HEADER, Uploaded
from weft.cli import jobs as jobs_module
from weft.cli import models as models_module
from weft.cli import programs as programs_module
from weft.cli.app import app

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line against a script of answers."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)

    def run_(script: Script, *arguments: str) -> Result:
        for module in (jobs_module, models_module, programs_module):
            monkeypatch.setattr(module, "Client", lambda _url=None: script.client())
        return CliRunner().invoke(app, arguments, catch_exceptions=False)

    return run_


@pytest.fixture
def file(tmp_path: Path) -> str:
    """x -> logits, with a switch that nothing trains."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "times"),
        helper.make_node("Round", ["h"], ["r"], "round"),
        helper.make_node("Add", ["h", "r"], ["logits"], "add"),
    ]
    proto = model(nodes, [floats("x", "N", 3)], ("logits",), [weights("w", 3, 4)])
    path = tmp_path / "my model.onnx"
    path.write_bytes(proto.SerializeToString())
    return str(path)


UPLOADED = Uploaded.model_validate(
    {"id": "up-1", "names": ["w"], "size_bytes": 8, "expires_at": "2024-05-06T07:08:09Z"}
)
LOSS = ("--loss", "cross_entropy", "--data", "d.npz")


def test_submit_sends_values_and_a_job(run: Run, file: str) -> None:
    script = answers(UPLOADED, job())
    more = ("--metric", "accuracy", "--column", "labels=y", "--batch-size", "8", "--steps", "5", "--optimizer", "adam")
    result = run(script, "submit", file, *LOSS, *more, "--lr", "0.5", "--workers", "2", "--evaluate", "80:100")
    assert result.exit_code == 0, result.stderr
    upload, submitted = script.requests
    assert load(upload.content)["w"].shape == (3, 4)
    spec = JobSpec.model_validate_json(submitted.content)
    assert (spec.name, spec.loss, spec.metrics) == ("my-model", "loss", {"accuracy": "accuracy"})
    assert spec.data.columns == {"x": "x", "labels": "y"}
    assert (spec.data.batch_size, spec.run.steps, spec.parallelism.workers) == (8, 5, 2)
    assert spec.data.evaluate is not None
    assert (spec.data.evaluate.start, spec.data.evaluate.stop) == (80, 100)
    assert (spec.optimizer.name, getattr(spec.optimizer, "lr", None)) == ("adam", 0.5)
    assert spec.init_from is not None


def test_other_first_values_and_dry_runs_send_none_of_the_files(run: Run, file: str) -> None:
    script = answers(job("other"), job())
    assert run(script, "submit", file, *LOSS, "--steps", "5", "--init-from", "other").exit_code == 0
    assert json.loads(script.requests[-1].content)["init_from"] == {"job": "other"}
    script = answers(DRY.model_copy(update={"lacking": "the file's values go up with the job"}))
    assert run(script, "submit", file, *LOSS, "--steps", "5", "--dry-run").exit_code == 0
    assert [request.url.path for request in script.requests] == ["/v1/jobs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--loss cross_entropy, mse, l1, bce_with_logits, nll"),
        (["--loss", "mse"], "--data FILE.npz, with columns x, target"),
        (["--loss", "mse", "--data", "d.npz"], "--steps or --epochs"),
        ([*LOSS, "--steps", "1", "--column", "z=y"], "the model has no input 'z'; it has x, labels"),
        ([*LOSS, "--steps", "1", "--column", "z"], "--column is 'z'; it should be INPUT=COLUMN"),
        (
            [*LOSS, "--steps", "1", "--optimizer", "lion"],
            "--optimizer: no optimizer is called 'lion'; there are sgd, adam, adamw",
        ),
        ([*LOSS, "--steps", "1", "--evaluate", "9"], "--evaluate is '9'; it should be rows from"),
        (
            [*LOSS, "--steps", "1", "--shape", "x"],
            "--shape is 'x'; it should be the dimensions' names or sizes, such as INPUT=batch,3,224,224",
        ),
        ([*LOSS, "--steps", "1", "--output", "y"], "there is no output 'y'; there are 'logits'"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_sent(
    run: Run, file: str, arguments: list[str], message: str
) -> None:
    script = answers(job())
    result = run(script, "submit", file, *arguments)
    assert result.exit_code in {1, 2}
    assert message in result.stderr
    assert script.requests == []


@pytest.fixture
def classifier(tmp_path: Path) -> str:
    """x -> h -> (probabilities, sizes), as a file of Keras has it."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "times"),
        helper.make_node("MatMul", ["h", "v"], ["scores"], "head"),
        helper.make_node("Softmax", ["scores"], ["probabilities"], "softmax"),
        helper.make_node("MatMul", ["h", "u"], ["sizes"], "other"),
    ]
    held = [weights("w", 3, 4), weights("v", 4, 5), weights("u", 4, 2)]
    path = tmp_path / "classifier.onnx"
    path.write_bytes(
        model(nodes, [floats("x", "N", 3)], ("probabilities", "sizes"), held, opset=15).SerializeToString()
    )
    return str(path)


OF_CLASSES = ("--loss", "cross_entropy", "--output", "probabilities")
RUN = ("--data", "d.npz", "--steps", "1")


def test_a_softmax_is_told_wherever_a_loss_is_given(run: Run, classifier: str) -> None:
    told = "output 'probabilities' is made by node 'softmax', a Softmax: cross_entropy takes logits"
    script = answers(UPLOADED, job())
    result = run(script, "submit", classifier, *OF_CLASSES, *RUN)
    assert f"warning: {told}" in result.stderr
    assert "warning: parameters that lead to no loss do not train: 'u'" in result.stderr
    spec = JobSpec.model_validate_json(script.requests[-1].content)
    (made,) = (each for each in spec.graph["nodes"] if spec.loss in each["outputs"])
    assert (made["op_type"], made["inputs"]) == ("SoftmaxCrossEntropyLoss", ["scores", "labels"])
    assert spec.graph["outputs"] == ["loss", "probabilities", "sizes"]
    inspected = run(answers(), "inspect", classifier, *OF_CLASSES).stdout
    assert told in inspected
    assert "parameters that stay\n  u  float32[4, 2]  (no loss depends on it)\n" in inspected
    document = json.loads(run(answers(), "inspect", classifier, "-o", "json").stdout)
    assert document["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 3]}]
    assert {"name": "u", "dtype": "float32", "shape": [4, 2], "trainable": True} in document["parameters"]
    programs = run(answers(), "programs", classifier, *OF_CLASSES)
    assert told in programs.stderr
    assert "training step: " in programs.stdout


def test_several_losses_are_paired_with_their_outputs_and_targets(run: Run, classifier: str) -> None:
    losses = (*OF_CLASSES, "--target", "kind", "--loss", "0.5*mse", "--output", "h", "--target", "size")
    script = answers(UPLOADED, job())
    result = run(script, "submit", classifier, *losses, "--metric", "accuracy", *RUN, "--column", "kind=k")
    assert result.exit_code == 0, result.stderr
    spec = JobSpec.model_validate_json(script.requests[-1].content)
    assert list(spec.metrics) == ["probabilities_cross_entropy", "h_mse", "accuracy"]
    assert spec.data.columns == {"x": "x", "kind": "k", "size": "size"}
    out = run(answers(), "inspect", classifier, *losses).stdout
    assert "  kind  int64[batch]\n  size  float32[batch, 4]\n" in out
    assert "  h_mse  float32[]\n" in out
    assert "training step: " in run(answers(), "programs", classifier, *losses).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--loss", "mse", "--output", "zz"], "there is no output 'zz'; there are 'probabilities', 'sizes', and the"),
        (["--loss", "mse", "--output", "size"], "no output 'size'; did you mean 'sizes'?"),
        ([*OF_CLASSES, "--loss", "mse"], "there are 2 losses, and `output` is given 1 times"),
        (["--loss", "nll", "--output", "probabilities"], "a Softmax, and nll takes log-probabilities: use log_loss"),
        (["--output", "h"], "--loss cross_entropy, mse"),
    ],
)
def test_what_a_loss_cannot_be_of_is_said(run: Run, classifier: str, arguments: list[str], message: str) -> None:
    for command in ("inspect", "programs"):
        result = run(answers(), command, classifier, *arguments)
        assert result.exit_code in {1, 2}
        assert message in result.stderr


def test_columns_that_do_not_fit_come_with_what_to_type(
    run: Run, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    detail = "the source has no column 'labels'; it has 'x', 'y'"
    refused = problem(422, "job-refused", detail, [{"pointer": "/data/columns/labels", "detail": detail}])
    result = run(answers(UPLOADED, refused), "submit", file, *LOSS, "--steps", "1")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "to feed 'labels' from another column: --column labels=COLUMN"
    assert detail in result.stderr
    written = spec_of(file).model_dump_json()
    Path("job.json").write_text(written, "utf-8")
    result = run(answers(refused), "submit", "job.json")
    assert result.stderr.endswith("--set data.columns.labels=COLUMN\n")


def test_options_of_models_are_no_options_of_job_files(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text("{}")
    for given, remedy in (
        (["--loss", "mse"], "submit MODEL.onnx --loss ..."),
        (["--data", "x.npz"], "write --set data.source.path=x.npz"),
        (["--optimizer", "adam"], "write --set optimizer=adam"),
    ):
        result = run(answers(job()), "submit", str(path), *given)
        assert result.exit_code == 2
        assert f"{given[0]} is for ONNX files" in result.stderr
        assert result.stderr.endswith(f"{remedy}\n")
    assert "--loss is for ONNX files" in run(answers(job()), "programs", "job-1", "--loss", "mse").stderr


def test_warnings_are_shown_and_no_model_is_an_error(run: Run, file: str, tmp_path: Path) -> None:
    result = run(answers(UPLOADED, job()), "submit", file, *LOSS, "--steps", "1", "--freeze", "encoder.*")
    assert "warning: frozen 'encoder.*' is no parameter's name and no node's" in result.stderr
    (tmp_path / "text.onnx").write_text("hello")
    result = run(answers(job()), "submit", str(tmp_path / "text.onnx"), *LOSS, "--steps", "1")
    assert (result.exit_code, "text.onnx: the file is no ONNX model" in result.stderr) == (1, True)
    assert f"there is no file {Path('none.onnx').absolute()}" in run(answers(job()), "inspect", "none.onnx").stderr


def test_inspect_tells_what_there_is_and_what_cannot_train(run: Run, file: str) -> None:
    assert run(answers(), "inspect", file, "--data", "d.npz").exit_code == 2  # an option that it has no use for
    out = run(answers(), "inspect", file).stdout
    assert "inputs\n  x  float32[batch, 3]\noutputs\n  logits  float32[batch, 4]\n" in out
    assert "parameters that train (1 of 1, 12 numbers in all)\n  w  float32[3, 4]\n" in out
    assert "what cannot train" not in out
    assert "operators\n  Add  1\n  MatMul  1\n  Round  1\n" in out
    assert "  labels  int64[batch]" in run(answers(), "inspect", file, "--loss", "cross_entropy").stdout
    assert (
        "parameters that stay\n  w  float32[3, 4]  (frozen)\n"
        in run(answers(), "inspect", file, "--freeze", "w").stdout
    )


def test_programs_of_a_model_are_those_of_its_job(run: Run, file: str) -> None:
    script = answers(problem(422, "job-refused", "no"))
    assert run(script, "programs", file, *LOSS).exit_code == 1
    (request,) = script.requests
    assert (request.url.path, request.url.params["dry_run"]) == ("/v1/jobs", "true")
    assert [node["op_type"] for node in json.loads(request.content)["graph"]["nodes"]][-1] == "SoftmaxCrossEntropyLoss"


def test_programs_of_a_model_need_no_data_and_no_server(run: Run, file: str) -> None:
    script = answers()
    text = run(script, "programs", file, "--loss", "cross_entropy").stdout
    assert "training step: " in text
    assert "evaluation step: " in text
    assert "MatMul" in text
    document = json.loads(run(script, "programs", file, "--loss", "cross_entropy", "-o", "json").stdout)
    assert document["train"]["outputs"]["loss"] == "loss"
    short = run(script, "programs", file, "--passes", "--loss", "mse", "--batch-size", "8").stdout
    full = run(script, "programs", file, "full", "--passes", "--loss", "mse").stdout
    assert "both programs" in short
    assert len(full) > len(short)
    result = run(script, "programs", file, "--memory", "--loss", "mse")
    assert (result.exit_code, "--memory goes by the data" in result.stderr) == (2, True)
    assert "--loss cross_entropy, mse" in run(script, "programs", file).stderr
    assert script.requests == []


def test_data_of_this_folder_comes_before_the_servers_of_that_name(
    run: Run, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lacking = problem(422, "job-refused", "no", [{"pointer": "/data/source/path", "detail": "cannot open 'd.npz'"}])
    missing = run(answers(UPLOADED, lacking), "submit", file, *LOSS, "--steps", "1")
    assert missing.exit_code == 1
    assert "cannot open 'd.npz'" in missing.stderr
    (tmp_path / "d.npz").write_bytes(b"")
    script = answers(UPLOADED, lacking, job())
    assert run(script, "submit", file, *LOSS, "--steps", "1").exit_code == 0
    first, second = (json.loads(request.content)["data"]["source"]["path"] for request in script.requests[1:])
    assert (first, second) == (str(tmp_path / "d.npz"), "d.npz")
    script = answers(lacking, lacking)
    assert "cannot open" in run(script, "submit", file, *LOSS, "--steps", "1", "--dry-run").stderr
    assert len(script.requests) == 2
    script = answers(lacking, problem(422, "job-refused", "no"))
    assert run(script, "programs", file, *LOSS).exit_code == 1
    assert len(script.requests) == 2


def test_an_inputs_shape_may_be_another_than_the_files(run: Run, file: str) -> None:
    assert "  x  float32[batch, 4, 3]\n" in run(answers(), "inspect", file, "--shape", "x=batch,4,3").stdout


def test_what_cannot_train_is_named() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "lost"], ["a"], "scale"),
        helper.make_node("Round", ["a"], ["b"], "round"),
        helper.make_node("Mul", ["b", "kept"], ["y"], "times"),
    ]
    held = [initializer(name, np.ones(3, np.float32)) for name in ("lost", "kept")]
    read = weft.from_onnx(model(nodes, [floats("x", "N", 3)], ("y",), held), parameters="*")
    assert str(read).endswith(
        "what cannot train\n  parameter 'lost' gets no gradient: node 'round' (Round) has none to pass on"
    )


def spec_of(file: str) -> JobSpec:
    made = weft.from_onnx(file).with_loss("cross_entropy")
    return weft.job_spec(made, data="d.npz", steps=1)


def test_export_writes_the_trained_model(run: Run, file: str, tmp_path: Path) -> None:
    import httpx

    values = {"w": np.full((3, 4), 2, np.float32)}

    def held(_request: Any) -> httpx.Response:
        return httpx.Response(200, content=save(values), headers={STEP_HEADER: "7"})

    script = answers(job(), spec_of(file), held)
    path = tmp_path / "out.onnx"
    result = run(script, "export", "job-1", str(path), "--opset", "20")
    assert result.exit_code == 0, result.stderr
    assert script.requests[-1].url.params.get_list("name") == ["w"]
    back = weft.from_onnx(path)
    assert (list(back.inputs), list(back)) == (["x"], ["logits"])
    assert np.all(back.values["w"] == 2)
    assert onnx.load(path).opset_import[0].version == 20
    script = answers(job(), spec_of(file), held)
    assert run(script, "export", "job-1", str(path), "--output", "h").exit_code == 0
    assert list(weft.from_onnx(path)) == ["h"]
    assert run(answers(job(), held), "export", "job-1", str(tmp_path / "w.safetensors")).exit_code == 0
    averages = {**values, "weft.state/weft.average/w": np.full((3, 4), 3, np.float32)}
    script = answers(
        job(), spec_of(file), lambda _: httpx.Response(200, content=save(averages), headers={STEP_HEADER: "7"})
    )
    assert run(script, "export", "job-1", str(path), "--ema").exit_code == 0
    assert np.all(weft.from_onnx(path).values["w"] == 5)  # an average is kept as what is to be added
    assert np.all(weft.load(tmp_path / "w.safetensors")["w"] == 2)


def test_export_of_a_graph_that_gives_its_loss_alone_asks_for_outputs(run: Run, tmp_path: Path) -> None:
    x, w = weft.input("x"), weft.parameter("w", (), weft.nn.initializers.zeros(()))
    scores = weft.ops.mul(x, w, name="scores")
    loss, most = weft.ops.reduce_mean(scores), weft.ops.reduce_max(weft.ops.neg(scores, name="negative"))
    spec = weft.job_spec(loss, metrics={"most": most}, data="d.npz", steps=1)
    result = run(answers(job(), spec), "export", "job-1", str(tmp_path / "m.onnx"))
    assert result.exit_code == 2
    assert result.stderr.endswith("--output NAME on the command line. The last values before the loss are scores\n")
