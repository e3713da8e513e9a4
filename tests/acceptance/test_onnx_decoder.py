"""A decoder that PyTorch exported trains on two workers as in PyTorch's own loop, and goes home as an ONNX file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import weft
from acceptance_place import Place
from weft.api.event import MetricTaken

MODELS = Path(__file__).parents[1] / "torch_models"
STEPS, BATCH = 50, 16


@pytest.fixture(scope="module")
def held() -> dict[str, np.ndarray]:
    """Tokens, labels, and what PyTorch's loop gave: the loss of each step, the logits of the first batch after it."""
    with np.load(MODELS / "trained_decoder.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module")
def trained(place: Place) -> Iterator[weft.JobHandle]:
    """The job, submitted on the command line."""
    tokens = place.folder / "tokens.npz"
    shutil.copy(MODELS / "trained_decoder.npz", tokens)
    said = place.printed(
        *(
            "submit",
            str(MODELS / "trained_decoder.onnx"),
            "--loss",
            "cross_entropy",
            "--metric",
            "accuracy",
            "-o",
            "json",
        ),
        *("--data", str(tokens), "--no-shuffle", "--batch-size", str(BATCH), "--steps", str(STEPS)),
        *("--optimizer", "adam", "--lr", "1e-2", "--workers", "2", "--shards", "2"),
    )
    with place.cluster.client() as client:
        job = client.job(json.loads(said)["id"])
        job.wait(timeout_s=180)
        yield job


def test_its_loss_is_that_of_pytorchs_loop_and_falls(trained: weft.JobHandle, held: dict[str, np.ndarray]) -> None:
    """Each metric is the mean over the steps since the one before."""
    taken = [event.body for event in trained.log() if isinstance(event.body, MetricTaken)]
    ends = [0, *(each.step for each in taken)]
    wanted = [held["losses"][start:stop].mean() for start, stop in pairwise(ends)]
    assert ends[-1] == STEPS
    np.testing.assert_allclose([each.values["loss"] for each in taken], wanted, atol=1e-3)
    assert taken[-1].values["loss"] < taken[0].values["loss"] / 3
    assert taken[-1].values["accuracy"] > 0.8


def test_its_logits_are_pytorchs_after_the_run(trained: weft.JobHandle, held: dict[str, np.ndarray]) -> None:
    model = trained.model()
    assert (list(model.inputs), list(model)) == (["tokens"], ["logits"])
    logits = model.evaluate({"tokens": held["tokens"][:BATCH]})["logits"]
    np.testing.assert_allclose(logits, held["logits"], atol=1e-3)  # 50 steps of Adam apart, in float32


def test_the_onnx_file_that_comes_back_gives_the_same_in_another_runtime(
    trained: weft.JobHandle, place: Place, held: dict[str, np.ndarray], tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "decoder.onnx"
    place.printed("export", trained.id, str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [given.name for given in session.get_inputs()] == ["tokens"]
    assert [given.name for given in session.get_outputs()] == ["logits"]
    feeds = {"tokens": held["tokens"][:BATCH]}
    (theirs,) = session.run(None, feeds)
    np.testing.assert_allclose(theirs, trained.model().evaluate(feeds)["logits"], atol=1e-5)


def test_a_file_that_came_back_trains_on(
    trained: weft.JobHandle, place: Place, held: dict[str, np.ndarray], tmp_path: Path
) -> None:
    path = tmp_path / "decoder.onnx"
    trained.export_onnx(path)
    again = weft.from_onnx(path).with_loss("cross_entropy")
    feeds = {"tokens": held["tokens"], "labels": held["labels"]}
    assert again.evaluate(feeds)["loss"] < held["losses"][-1]
    with place.cluster.client() as client:
        data = weft.numpy_data(place.folder / "tokens.npz", shuffle=False)
        job = client.submit(again, data=data, batch_size=BATCH, steps=10, optimizer=weft.Adam(lr=1e-3))
        job.wait(timeout_s=180)
        (first,) = [event.body for event in job.log() if isinstance(event.body, MetricTaken)]
    assert first.values["loss"] < held["losses"][-1]


def test_a_job_whose_parameters_get_no_values_is_refused_by_name(client: weft.Client, place: Place) -> None:
    made = weft.from_onnx(MODELS / "trained_decoder.onnx").with_loss("cross_entropy")
    spec = weft.job_spec(made, data=str(place.folder / "tokens.npz"), steps=1)
    told = f" and {len(made.values) - 1} more have no first value of their own"
    run = client.dry_run(spec)
    assert run.given == []
    assert told in (run.lacking or "")
    with pytest.raises(weft.InvalidRequestError, match=told) as caught:
        client.submit_spec(spec)
    assert [(each.pointer, each.detail) for each in caught.value.problem.errors] == [("/init_from", run.lacking)]
