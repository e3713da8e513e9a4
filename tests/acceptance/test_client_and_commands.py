"""Client and command line against real daemons: what the fakes claim of a server is so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from safetensors.numpy import load_file
from typer.testing import CliRunner

import weft
from acceptance_place import Place
from acceptance_processes import ROOT
from weft import nn, ops
from weft.api.event import Event, MetricTaken, StateChanged
from weft.api.lifecycle import JobState
from weft.cli.app import app
from weft.event_stream import Notice

STEPS = 12


@pytest.fixture(scope="module", autouse=True)
def cluster(place: Place) -> weft.Cluster:
    """With what the jobs read."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 4)).astype(np.float32)
    for name in ("points.npz", "few.npz"):  # the examples' own job writes the first anew
        np.savez(place.folder / name, x=x, y=(x.sum(1) > 0).astype(np.int64))
    return place.cluster


def submit(client: weft.Client, *, features: int = 4, steps: int = STEPS, name: str = "points") -> weft.JobHandle:
    scores = nn.Linear(features, 2, name="fc")(weft.input("x", ("batch", features)))
    loss = nn.cross_entropy(scores, weft.input("y", ("batch",), "int64"))
    data = weft.numpy_data("points.npz", evaluate=(80, 100))
    return client.submit(
        loss, data=data, batch_size=20, steps=steps, workers=2, shards=2, optimizer=weft.SGD(lr=0.5), name=name
    )


def run(cluster: weft.Cluster, *arguments: str) -> Result:
    """The command line, in this process."""
    return CliRunner().invoke(app, [*arguments, "--url", cluster.url], catch_exceptions=False)


def run_process(cluster: weft.Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, as a shell runs it."""
    command = [sys.executable, "-c", "from weft.cli import main; main()", *arguments, "--url", cluster.url]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_job_trains_and_its_values_are_those_of_plain_gradient_descent(
    cluster: weft.Cluster, client: weft.Client
) -> None:
    """Rows 0..79 in four batches of twenty, three passes, without shuffling: the descent is written out in float64."""
    scores = nn.Linear(4, 2, init=nn.zeros, name="fc")(weft.input("x", ("batch", 4)))
    loss = nn.cross_entropy(scores, weft.input("y", ("batch",), "int64"))
    data = weft.numpy_data("points.npz", train=(0, 80), shuffle=False)
    job = client.submit(loss, data=data, batch_size=20, steps=STEPS, workers=2, shards=2, optimizer=weft.SGD(lr=0.5))
    assert job.wait(timeout_s=60).state is JobState.SUCCEEDED
    with np.load(cluster.data_root / "points.npz") as points:
        x, y = points["x"].astype(np.float64), points["y"]
    w, b = np.zeros((2, 4)), np.zeros(2)
    for step in range(STEPS):
        rows = slice(step * 20 % 80, step * 20 % 80 + 20)
        e = np.exp(x[rows] @ w.T + b)
        d = (e / e.sum(1, keepdims=True) - np.eye(2)[y[rows]]) / 20
        w, b = w - 0.5 * d.T @ x[rows], b - 0.5 * d.sum(0)
    values = job.values()
    assert values.step == STEPS
    np.testing.assert_allclose(values["fc.weight"], w, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(values["fc.bias"], b, rtol=1e-4, atol=1e-6)
    assert {p.name: p.shape for p in job.parameters()} == {"fc.weight": [2, 4], "fc.bias": [2]}


def test_its_log_can_be_read_from_anywhere(client: weft.Client) -> None:
    job = submit(client)
    job.wait(timeout_s=60)
    whole = list(job.events())
    assert whole == list(job.log())
    assert isinstance(whole[-1].body, StateChanged)
    assert any(isinstance(event.body, MetricTaken) and event.body.split == "evaluate" for event in whole)
    for after in (0, 3, len(whole) - 1, len(whole)):
        assert list(job.events(after)) == whole[after:]


def test_a_wrong_column_is_refused_with_its_pointer(client: weft.Client) -> None:
    with pytest.raises(weft.InvalidRequestError) as caught:
        submit(client, features=5)
    assert [error.pointer for error in caught.value.problem.errors] == ["/data/columns/x"]


def test_what_there_is_not_is_not_found(client: weft.Client) -> None:
    with pytest.raises(weft.NotFoundError) as caught:
        client.job("nope")
    assert caught.value.code == "unknown-job"
    job = submit(client)
    job.wait(timeout_s=60)
    with pytest.raises(weft.NotFoundError) as caught:
        job.values(["fc.nothing"])
    assert caught.value.code == "unknown-parameter"


def test_a_cancelled_job_is_cancelled_and_a_finished_one_cannot_be(client: weft.Client) -> None:
    job = submit(client, steps=10_000_000)
    job.cancel()
    with pytest.raises(weft.JobCancelledError):
        job.wait(timeout_s=60)
    with pytest.raises(weft.JobCancelledError):
        job.watch()
    finished = submit(client)
    finished.wait(timeout_s=60)
    with pytest.raises(weft.ConflictError):
        finished.cancel()


def test_pages_of_jobs_have_every_job_once(client: weft.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted = [submit(client, steps=1, name="paged").id for _ in range(5)]
    monkeypatch.setattr("weft.client.PAGE", 2)
    listed = [job.id for job in client.jobs()]
    assert len(set(listed)) == len(listed)
    assert listed[:5] == submitted[::-1]
    for job in submitted:
        client.job(job).wait(timeout_s=60)


def test_the_command_line_shows_saves_and_explains(
    cluster: weft.Cluster, client: weft.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.cli.doctor.ANSWER_S", 60.0)
    job = submit(client, name="shown")
    job.wait(timeout_s=60)
    assert f"weft params save {job.id}" in run(cluster, "show", job.id[:8]).stdout
    assert json.loads(run(cluster, "show", job.id, "-o", "json").stdout)["id"] == job.id
    path = tmp_path / "shown.safetensors"
    assert run(cluster, "params", "save", job.id, str(path)).exit_code == 0
    np.testing.assert_array_equal(load_file(path)["fc.weight"], job.values()["fc.weight"])
    printed = json.loads(run(cluster, "params", "get", job.id, "fc.bias", "-o", "json").stdout)
    np.testing.assert_array_equal(np.array(printed["values"], np.float32), job.values()["fc.bias"])
    assert "Gemm" in run(cluster, "programs", job.id).stdout
    assert "keys" in json.loads(run(cluster, "programs", job.id, "-o", "json").stdout)
    assert "succeeded" in run(cluster, "logs", job.id).stdout.splitlines()[-1]
    checked = run(cluster, "doctor").stdout
    assert f"ready at {cluster.url}, release " in checked
    assert "2 workers, 2 shards" in checked
    missing = run(cluster, "params", "get", job.id, "fc.nothing")
    assert missing.exit_code == 1
    assert "fc.weight" in missing.stderr


def test_a_refused_document_shows_its_pointers_on_the_command_line(cluster: weft.Cluster, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text('{"name": "a b", "graph": {}, "loss": "l", "run": {"steps": 0}, "surplus": 1}')
    refused = run_process(cluster, "submit", str(path))
    assert refused.returncode == 1
    assert refused.stdout == ""
    for pointer in ("/name:", "/run/steps:", "/surplus:", "/data:"):
        assert f"  {pointer}" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_job_spec_is_a_job_file(cluster: weft.Cluster, client: weft.Client, tmp_path: Path) -> None:
    scores = nn.Linear(4, 2)(weft.input("x", ("batch", 4)))
    loss = nn.cross_entropy(scores, weft.input("y", ("batch",), "int64"))
    path = tmp_path / "job.json"
    path.write_text(weft.job_spec(loss, data="points.npz", steps=2, name="filed").model_dump_json(indent=2))
    submitted = run_process(cluster, "submit", str(path), "--watch", "-o", "json")
    assert submitted.returncode == 0, submitted.stderr
    assert submitted.stderr.splitlines()[-1] == "succeeded"
    first = client.job(json.loads(submitted.stdout)["id"])
    assert first.state is JobState.SUCCEEDED
    again = run(cluster, "submit", first.id[:8], "--set", "epochs=1", "--set", "name=again", "-o", "json")
    spec = client.job(json.loads(again.stdout)["id"]).spec()
    assert spec.graph == first.spec().graph
    assert (spec.name, spec.run.epochs, spec.run.steps) == ("again", 1, None)
    assert run(cluster, "wait", json.loads(again.stdout)["id"][:8], "--timeout", "60s").exit_code == 0


def test_a_job_that_no_cluster_of_this_size_can_place_says_so(cluster: weft.Cluster, client: weft.Client) -> None:
    scores = nn.Linear(4, 2)(weft.input("x", ("batch", 4)))
    loss = nn.cross_entropy(scores, weft.input("y", ("batch",), "int64"))
    job = client.submit(loss, data="points.npz", steps=1, workers=5)
    told = job.narrated()
    assert isinstance(first := next(told), Notice)
    assert first.text.startswith("pending: needs 5 workers")
    assert first.text.removeprefix("pending: ") in run(cluster, "jobs").stdout
    job.cancel()
    assert isinstance(last := list(told)[-1], Event)
    assert isinstance(last.body, StateChanged)
    assert last.body.state is JobState.CANCELLED


def test_the_first_job_of_the_examples_runs(cluster: weft.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_URL", cluster.url)
    command = [sys.executable, str(ROOT / "examples" / "first_job.py")]
    done = subprocess.run(command, cwd=cluster.data_root, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "parameters: {" in done.stdout
    assert "'0.weight': (64, 20)" in done.stdout


def quiet(client: weft.Client, **settings: Any) -> weft.JobHandle:
    """A job whose values stay as they begin, but for less than 1e-20: its rate is next to nothing."""
    scores = nn.Linear(4, 2, name="fc")(weft.input("x", ("batch", 4)))
    loss = nn.cross_entropy(scores, weft.input("y", ("batch",), "int64"))
    length = {"steps": STEPS} if "steps" not in settings else {}
    return client.submit(
        loss, data="few.npz", batch_size=20, workers=2, shards=2, optimizer=weft.SGD(lr=1e-30), **length, **settings
    )


def test_a_job_begins_with_another_s_values_or_with_a_file_s(client: weft.Client, tmp_path: Path) -> None:
    first = quiet(client, seed=5)
    first.wait(timeout_s=60)
    path = tmp_path / "first.safetensors"
    first.save(path)
    for init_from in (first, first.id, path):
        job = quiet(client, init_from=init_from)
        job.wait(timeout_s=60)
        for name, value in first.values().items():
            np.testing.assert_allclose(job.values()[name], value, rtol=0, atol=1e-20, strict=True)
    with pytest.raises(weft.NotFoundError, match="no job's id begins with 'nosuchjob'"):
        quiet(client, init_from="nosuchjob")


def test_parameters_are_set_while_a_job_runs(cluster: weft.Cluster, client: weft.Client, tmp_path: Path) -> None:
    job = quiet(client, steps=10_000_000)
    next(event for event in job.events() if getattr(event.body, "state", None) is JobState.RUNNING)
    step = job.set("fc.bias", [1.5, -2.0])
    values = job.values()
    assert values.step >= step > 0
    np.testing.assert_array_equal(values["fc.bias"], np.array([1.5, -2.0], np.float32), strict=True)
    set_ = run(cluster, "params", "set", job.id, "fc.weight=0.25", "-o", "json")
    assert json.loads(set_.stdout)["step"] > step
    np.testing.assert_array_equal(job.values()["fc.weight"], np.full((2, 4), 0.25, np.float32), strict=True)
    wrong = run(cluster, "params", "set", job.id, "fc=1")
    assert (wrong.exit_code, "it has fc.weight, fc.bias" in wrong.stderr) == (2, True)
    job.cancel()
    with pytest.raises(weft.ConflictError):
        job.set("fc.bias", 0.0)


def test_kept_state_is_saved_where_it_is_asked_for(client: weft.Client) -> None:
    scores = nn.Linear(4, 2, name="fc")(weft.input("x", ("batch", 4)))
    loss = nn.cross_entropy(scores, weft.input("y", ("batch",), "int64"))
    job = client.submit(
        loss,
        data="few.npz",
        batch_size=20,
        steps=3,
        workers=2,
        optimizer=weft.Adam(),
        recovery=weft.Recovery(keep_state=True),
    )
    job.wait(timeout_s=60)
    assert set(job.values()) == {"fc.weight", "fc.bias"}
    state = {f"weft.state/{name}/{key}" for name in ("mean", "variance") for key in ("fc.weight", "fc.bias")}
    assert set(job.values(state=True)) == {"fc.weight", "fc.bias"} | state
    assert job.traffic.sent_bytes > 0
    assert job.traffic.received_bytes > 0


def test_a_dry_run_says_what_a_job_would_be_and_submits_none(
    cluster: weft.Cluster, client: weft.Client, tmp_path: Path
) -> None:
    before = [job.id for job in client.jobs()]
    bag = nn.EmbeddingBag(1000, 8, padding_idx=0, name="bag")(ops.cast(weft.input("x", ("batch", 4)), "int64"))
    loss = nn.cross_entropy(nn.Linear(8, 2, name="fc")(bag), weft.input("y", ("batch",), "int64"))
    spec = weft.job_spec(loss, data="few.npz", batch_size=20, epochs=2, optimizer=weft.Adam(), workers=2, shards=2)
    dry = client.dry_run(spec)
    assert (dry.steps, dry.steps_per_epoch) == (10, 5)
    assert {key.key: key.rows for key in dry.keys} == {"bag.weight": True, "fc.weight": False, "fc.bias": False}
    assert dry.store_memory.table_bytes == 1000 * 8 * 4
    assert dry.store_memory.table_state_bytes == 2 * 1000 * 8 * 4
    path = tmp_path / "job.json"
    path.write_text(spec.model_dump_json())
    assert "is a table: it is read by rows alone" in run(cluster, "programs", str(path)).stdout
    assert "read by rows alone: " in run(cluster, "programs", str(path), "--passes").stdout
    assert "1 table by rows" in run(cluster, "programs", str(path), "--memory").stdout
    assert run(cluster, "submit", str(path), "--dry-run").exit_code == 0
    assert [job.id for job in client.jobs()] == before
