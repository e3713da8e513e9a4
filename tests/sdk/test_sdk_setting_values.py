"""Setting a job's parameters and beginning one from others: what is sent, and what is refused before it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save_file

import weft
from sdk_fakes import DRY, Script, answers, job, problem
from weft.api.job import FromJob, FromUpload, Job, JobSpec, ParameterInfo, ParameterList
from weft.api.values import Uploaded, UploadInfo, UploadList, ValuesSet, upload_id
from weft.client import CHECKED_FIRST_BYTES
from weft.http import UPLOAD_CHUNK_BYTES
from weft.parameter_file import save_values

LISTED = ParameterList(
    parameters=[
        ParameterInfo(name="a.weight", dtype="float32", shape=[2, 3], trainable=True),
        ParameterInfo(name="a.bias", dtype="float64", shape=[2], trainable=True),
    ]
)
SET = ValuesSet(names=["a.weight"], step=7)
UPLOADED = Uploaded(id="up-1", names=["a"], size_bytes=8, expires_at="2024-05-06T07:08:09Z")


def handle(script: Script) -> weft.JobHandle:
    return weft.JobHandle(script.client().http, job())


def sent(script: Script) -> dict[str, np.ndarray]:
    request = script.requests[-1]
    assert (request.method, request.url.path) == ("PUT", "/v1/jobs/job-1/values")
    assert request.headers["Content-Type"] == "application/octet-stream"
    assert int(request.headers["Content-Length"]) == len(request.content)
    return load(request.content)


def test_an_array_is_sent_as_its_parameter_s_elements_and_the_step_comes_back() -> None:
    script = answers(LISTED, SET)
    assert handle(script).set("a.weight", np.arange(6.0).reshape(2, 3)) == 7
    document = sent(script)
    assert set(document) == {"a.weight"}
    np.testing.assert_array_equal(document["a.weight"], np.arange(6, dtype=np.float32).reshape(2, 3), strict=True)


@pytest.mark.parametrize("number", [0.5, 3, np.float32(2.0)])
def test_a_number_fills_the_parameter(number: Any) -> None:
    script = answers(LISTED, SET)
    handle(script).set_all({"a.weight": number, "a.bias": number})
    document = sent(script)
    np.testing.assert_array_equal(document["a.weight"], np.full((2, 3), number, np.float32), strict=True)
    np.testing.assert_array_equal(document["a.bias"], np.full(2, number, np.float64), strict=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"b": 1.0}, "the job has no parameter 'b'; it has a.weight, a.bias"),
        ({"a.weight": np.zeros((3, 2))}, "has shape (2, 3), and is to be set from an array of (3, 2)"),
        ({"a.bias": np.zeros(1)}, "has shape (2,), and is to be set from an array of (1,)"),
        ({"a.weight": np.zeros((2, 3), np.complex64)}, "'a.weight' is float32, and is to be set from complex64"),
        ({"a.weight": "0.5"}, "'a.weight' is float32, and is to be set from <U3"),
        ({}, "no parameter is named"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_sent(values: dict[str, Any], message: str) -> None:
    script = answers(LISTED, SET)
    with pytest.raises(weft.ArgumentError) as caught:
        handle(script).set_all(values)
    assert message in str(caught.value)
    assert [request.method for request in script.requests] == ["GET"]


def test_a_file_is_sent_in_parts_and_whole_again_after_a_broken_connection(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    save_file({"a": np.arange(UPLOAD_CHUNK_BYTES // 2, dtype=np.float32)}, path)
    assert path.stat().st_size > 2 * UPLOAD_CHUNK_BYTES

    def broken(_request: httpx.Request) -> httpx.Response:
        raise httpx.WriteError("broken pipe")

    script = answers(broken, SET)
    assert handle(script).load(path) == 7
    assert [request.content for request in script.requests] == [path.read_bytes()] * 2


def test_a_refused_set_says_which_tensor(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a.weight": np.zeros(4, np.float32)}, path)
    errors = [{"pointer": "/a.weight", "detail": "has shape (4,), the parameter (2, 3)"}]
    script = answers(problem(422, "wrong-values", "the values are refused", errors))
    with pytest.raises(weft.InvalidRequestError, match=r"/a\.weight: has shape"):
        handle(script).load(path)


def spec_of(script: Script) -> JobSpec:
    return JobSpec.model_validate(script.body())


def submitted(script: Script, **settings: Any) -> JobSpec:
    x = weft.input("x", ("batch", 3))
    loss = weft.ops.reduce_mean(weft.nn.Linear(3, 1)(x))
    script.client().submit(loss, data="points.npz", steps=1, **settings)
    return spec_of(script)


@pytest.mark.parametrize("as_what", ["handle", "id", "spec"])
def test_a_job_begins_with_another_s_values(as_what: str) -> None:
    other = Job.model_validate({**job("job-7").model_dump()})
    script = answers(other, job()) if as_what == "id" else answers(job())
    given: Any = {"handle": weft.JobHandle(script.client().http, other), "id": "job-7", "spec": FromJob(job="job-7")}
    assert submitted(script, init_from=given[as_what]).init_from == FromJob(job="job-7")
    assert len(script.requests) == len(script.handlers)


@pytest.mark.parametrize("as_text", [True, False])
def test_a_job_begins_with_a_file_which_is_uploaded_first(tmp_path: Path, as_text: bool) -> None:
    path = tmp_path / "first.safetensors"
    save_file({"a": np.zeros(2, np.float32)}, path)
    script = answers(UPLOADED, job())
    spec = submitted(script, init_from=str(path) if as_text else path, recovery=weft.Recovery(keep_state=True))
    assert (spec.init_from, spec.keep_state) == (FromUpload(upload="up-1"), True)
    upload = script.requests[0]
    assert (upload.method, upload.url.path, upload.content) == ("POST", "/v1/uploads", path.read_bytes())


def test_values_of_a_submit_that_is_repeated_are_uploaded_once_and_others_are_uploaded(tmp_path: Path) -> None:
    zeros, ones = ({"a": make(2, np.float32)} for make in (np.zeros, np.ones))
    save_values(zeros, tmp_path / "zeros")
    kept = UploadInfo(id=upload_id("k", tmp_path / "zeros"), size_bytes=8, expires_at=UPLOADED.expires_at)
    uploaded = UPLOADED.model_copy(update={"id": kept.id})
    for script, values, sent, upload in (
        (answers(UploadList(uploads=[]), uploaded, job()), zeros, 3, kept.id),
        (answers(UploadList(uploads=[kept]), job()), zeros, 2, kept.id),
        (answers(UploadList(uploads=[kept]), UPLOADED, job()), ones, 3, UPLOADED.id),
    ):
        script.client().submit_spec(b"{}", values=values, idempotency_key="k")
        assert len(script.requests) == sent
        assert script.body() == {"init_from": {"upload": upload}}
        assert {each.headers.get("Idempotency-Key", "k") for each in script.requests} == {"k"}


def test_large_values_go_up_once_a_dry_run_has_accepted_the_job(tmp_path: Path) -> None:
    path = tmp_path / "first.safetensors"
    save_file({"a": np.zeros(CHECKED_FIRST_BYTES // 4, np.float32)}, path)
    script = answers(DRY, UPLOADED, job())
    assert submitted(script, init_from=path).init_from == FromUpload(upload="up-1")
    assert script.requests[0].url.params["dry_run"] == "true"
    assert script.body(0)["init_from"] is None
    script = answers(problem(422, "job-refused", "no"))
    with pytest.raises(weft.InvalidRequestError):
        submitted(script, init_from=path)
    assert len(script.requests) == 1


def test_a_job_that_makes_no_sense_uploads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "first.safetensors"
    save_file({"a": np.zeros(2, np.float32)}, path)
    script = answers(UPLOADED, job())
    with pytest.raises(weft.ArgumentError, match="batch_size is 0"):
        submitted(script, init_from=path, batch_size=0)
    with pytest.raises(weft.ArgumentError, match="init_from: there is no file"):
        submitted(script, init_from=tmp_path / "none.safetensors")
    assert script.requests == []


def test_a_job_s_document_has_no_file_and_nothing_that_is_none() -> None:
    x = weft.input("x", ("batch", 3))
    loss = weft.ops.reduce_mean(weft.nn.Linear(3, 1)(x))
    with pytest.raises(weft.ArgumentError, match=r"client\.upload\('w.safetensors'\)"):
        weft.job_spec(loss, data="points.npz", steps=1, init_from="w.safetensors")
    with pytest.raises(weft.ArgumentError, match="init_from is 3; it should be a job"):
        weft.job_spec(loss, data="points.npz", steps=1, init_from=3)  # type: ignore[arg-type]  # the point


def test_how_parameters_are_shared_is_said_in_words_and_checked() -> None:
    spec = submitted(
        answers(job()),
        communication=weft.Communication(mode="async", merge="arrival", slice_bytes=4096),
        workers=3,
    )
    shared = spec.parallelism
    assert (shared.mode, shared.merge, shared.slice_bytes, shared.workers) == ("async", "arrival", 4096, 3)
    assert submitted(answers(job()), communication=weft.Communication(update="workers")).parallelism.update == "workers"
    with pytest.raises(weft.ArgumentError, match=r"mode is 'later'; it should be 'sync' or 'async'"):
        submitted(answers(job()), communication=weft.Communication(mode="later"))
    with pytest.raises(weft.ArgumentError, match=r"slice_bytes is 100; it should be a multiple of 64"):
        submitted(answers(job()), communication=weft.Communication(slice_bytes=100))
