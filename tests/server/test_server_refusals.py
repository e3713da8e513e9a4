"""Everything that is refused is an RFC 9457 problem; nothing hostile stops the server."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from server_running import cast, eventually, parameters, running, state, submit
from server_specs import FEATURES, ROWS, save_rows, spec_json
from weft.api.agent import MetricReport, Report
from weft.api.lifecycle import AllocationEvent
from weft.api.problem import Problem

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("refusing")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[httpx.Client]:
    with running(directory) as client:
        yield client


@pytest.fixture
def client(server: httpx.Client) -> Iterator[httpx.Client]:
    """One server for all these tests: whatever one of them does to it, it serves the next."""
    yield server
    assert server.get("/readyz").status_code == 200, "the server lives on"
    for job in server.get("/v1/jobs", params={"state": ["pending", "running"]}).json()["jobs"]:
        server.post(f"/v1/jobs/{job['id']}/cancel")


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    return spec_json(save_rows(tmp_path / "rows.npz"))


def problem(response: httpx.Response, status: int, code: str) -> Problem:
    """The problem of a response, which has to be a whole one."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    found = Problem.model_validate(response.json())
    assert (response.status_code, found.status, found.code) == (status, status, code), response.text
    assert found.type == f"/problems/{code}"
    assert found.detail
    return found


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not-found"),
        ("GET", "/v1/jobs/", 404, "not-found"),
        ("DELETE", "/v1/jobs", 405, "method-not-allowed"),
        ("GET", "/v1/jobs/none", 404, "unknown-job"),
        ("GET", "/v1/jobs/none/events", 404, "unknown-job"),
        ("GET", "/v1/jobs/none/parameters", 404, "unknown-job"),
        ("GET", "/v1/jobs/none/values", 404, "unknown-job"),
        ("GET", "/v1/jobs/none/programs", 404, "unknown-job"),
        ("POST", "/v1/jobs/none/cancel", 404, "unknown-job"),
        ("GET", "/v1/jobs/..%2f..%2fetc/values", 404, "not-found"),
        ("GET", "/v1/jobs/a%00b", 422, "invalid-request"),
        ("GET", "/v1/jobs?limit=0", 422, "invalid-request"),
        ("GET", "/v1/jobs?cursor=x", 422, "invalid-request"),
        ("GET", "/v1/jobs?state=asleep", 422, "invalid-request"),
        ("DELETE", "/v1/agents/none", 404, "unknown-agent"),
        ("PUT", "/v1/allocations/none/parameters?term=1&step=1&final=true", 404, "unknown-allocation"),
        ("PUT", "/v1/allocations/none/parameters", 422, "invalid-request"),
    ],
)
def test_what_is_not_there_or_not_asked_rightly_is_a_problem(
    client: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    problem(client.request(method, path), status, code)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"name": NaN}',
        b'{"name": Infinity}',
        b'{"name": "\xff\xfe"}',
        b"[" * 100_000,
        b'{"graph":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001,
        b"\x00" * 10,
    ],
    ids=["cut", "nan", "infinity", "utf-8", "brackets", "nested", "zeros"],
)
def test_what_is_no_json_is_refused(client: httpx.Client, body: bytes) -> None:
    problem(client.post("/v1/jobs", content=body, headers=JSON), 400, "malformed-json")


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/agents"])
def test_a_key_that_an_object_has_twice_is_refused_by_name(client: httpx.Client, path: str) -> None:
    """Readers differ in which of the two counts: a job would train otherwise than its author reads it."""
    body = b'{"optimizer": [{"lr": 0.1, "name": "sgd", "lr": 0.5}], "name": "x"}'
    refused = problem(client.post(path, content=body, headers=JSON), 400, "repeated-key")
    assert refused.detail == "an object has the key 'lr' twice: keep one of them"


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'"x"', b"{}"])
def test_json_that_is_no_job_is_refused(client: httpx.Client, body: bytes) -> None:
    problem(client.post("/v1/jobs", content=body, headers=JSON), 422, "invalid-request")


def test_a_number_in_quotes_is_no_number(client: httpx.Client, document: dict[str, Any]) -> None:
    """The schema says integer, so what it refuses is refused: nobody comes to rely on a conversion."""
    wrong = {**document, "seed": "3", "keep_state": 1, "parallelism": {"workers": True, "shards": 1.0}}
    found = problem(submit(client, wrong), 422, "invalid-request")
    assert pointers(found) == {"/seed", "/keep_state", "/parallelism/workers"}


def test_a_whole_number_may_be_written_with_a_point(client: httpx.Client, document: dict[str, Any]) -> None:
    """JSON Schema knows one number, however it is written."""
    written = {**document, "seed": 3.0, "run": {"steps": 2.0}, "parallelism": {"workers": 2.0, "shards": 1}}
    job = submit(client, written)
    assert job.status_code == 201, job.text
    kept = client.get(f"/v1/jobs/{job.json()['id']}/spec").json()
    assert (kept["seed"], kept["run"]["steps"], kept["parallelism"]["workers"]) == (3, 2, 2)
    found = problem(submit(client, {**written, "seed": 3.5}), 422, "invalid-request")
    assert pointers(found) == {"/seed"}


@pytest.mark.parametrize(
    ("part", "pointer", "says"),
    [
        ({"epoch": 3}, "/epoch", "; there are name, graph, loss, "),
        ({"learning_rate": 0.1}, "/learning_rate", "; did you mean 'optimizer.lr'?"),
        ({"batch": 32}, "/batch", "; did you mean 'data.batch_size'?"),
        ({"optimizer": {"name": "adam", "beta_1": 0.9}}, "/optimizer/beta_1", "; did you mean 'betas'?"),
        ({"metrik": {}}, "/metrik", "; did you mean 'metrics'?"),
        ({"run": {"epoch": 3}}, "/run/epoch", "; did you mean 'epochs'?"),
        ({"optimizer": {"name": "sgd", "momentun": 0.9}}, "/optimizer/momentun", "; did you mean 'momentum'?"),
        (
            {"optimizer": {"name": "adam", "multipliers": [{"keys": "w", "wait_decay": 1}]}},
            "/optimizer/multipliers/0/wait_decay",
            "; did you mean 'weight_decay'?",
        ),
        ({"init_from": {"upload": "u-1", "job_id": 1}}, "/init_from/job_id", "; did you mean 'job'?"),
        ({"init_from": {"job": "j-1", "kept": 1}}, "/init_from/kept", "; there are job, upload"),
        ({"stop_when": {"metrics": "loss", "patience": 1}}, "/stop_when/metrics", "; did you mean 'metric'?"),
    ],
)
def test_a_field_that_there_is_not_is_answered_by_the_one_that_is_meant(
    client: httpx.Client, document: dict[str, Any], part: dict[str, Any], pointer: str, says: str
) -> None:
    found = problem(submit(client, {**document, **part}), 422, "invalid-request")
    [(place, detail)] = [(each.pointer, each.detail) for each in found.errors]
    assert place == pointer
    assert detail.startswith(f"there is no field {pointer.rpartition('/')[2]!r}{says}")


def test_a_query_parameter_that_a_call_does_not_have_is_refused(client: httpx.Client, document: dict[str, Any]) -> None:
    """`dryrun=true` was meant to submit nothing."""
    found = problem(client.post("/v1/jobs?dryrun=true", json=document), 422, "invalid-request")
    assert "'dryrun'" in found.detail
    assert "did you mean 'dry_run'?" in found.detail
    found = problem(client.get("/v1/uploads?all=1"), 422, "invalid-request")
    assert "it takes none" in found.detail


def test_405_names_all_methods_of_the_path(client: httpx.Client) -> None:
    response = client.patch("/v1/jobs")
    problem(response, 405, "method-not-allowed")
    assert response.headers["allow"] == "GET, POST"


def test_a_body_of_another_type_is_refused(client: httpx.Client, document: dict[str, Any]) -> None:
    """A page in a browser can post a form or text to loopback without asking, but not JSON."""
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        refused = client.post("/v1/jobs", content=json.dumps(document), headers={"Content-Type": kind})
        problem(refused, 415, "unknown-media-type")


def test_fifty_megabytes_are_refused_before_they_are_read(client: httpx.Client) -> None:
    response = client.post("/v1/jobs", content=b"x" * (50 << 20), headers=JSON)
    found = problem(response, 413, "too-large")
    assert str(50 << 20) in found.detail
    assert str(16 << 20) in found.detail


def test_a_stream_of_unknown_length_is_cut_at_the_limit(client: httpx.Client) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(50):
            yield b"x" * (1 << 20)

    problem(client.post("/v1/jobs", content=pieces(), headers=JSON), 413, "too-large")


def test_other_calls_have_a_lower_limit(client: httpx.Client) -> None:
    problem(client.post("/v1/agents", content=b" " * (9 << 20), headers=JSON), 413, "too-large")


def pointers(found: Problem) -> set[str]:
    return {error.pointer for error in found.errors}


def test_every_wrong_field_is_pointed_at(client: httpx.Client, document: dict[str, Any]) -> None:
    wrong = copy.deepcopy(document)
    wrong["optimizer"] = {"name": "sgd", "lr": -1, "colour": "red"}
    wrong["run"] = {"epochs": 1, "steps": 1}
    wrong["data"]["train"] = {"start": 5, "stop": 5}
    wrong["parallelism"]["workers"] = 0
    del wrong["loss"]
    found = problem(submit(client, wrong), 422, "invalid-request")
    assert pointers(found) == {
        "/optimizer/lr",
        "/optimizer/colour",
        "/run",
        "/data/train",
        "/parallelism/workers",
        "/loss",
    }


def test_a_wrong_graph_is_pointed_at_with_its_node(client: httpx.Client, document: dict[str, Any]) -> None:
    before = client.get("/v1/jobs").json()
    wrong = copy.deepcopy(document)
    wrong["graph"]["nodes"][0]["op_type"] = "Gremm"
    found = problem(submit(client, wrong), 422, "job-refused")
    assert [(error.pointer, error.node) for error in found.errors] == [("/graph/nodes/0/op_type", "scores")]
    assert client.get("/v1/jobs").json() == before, "a refused job is not kept"


def test_a_shape_that_does_not_fit_names_the_node(client: httpx.Client, document: dict[str, Any]) -> None:
    wrong = copy.deepcopy(document)
    wrong["graph"]["parameters"][0]["shape"] = [5, 3]
    found = problem(submit(client, wrong), 422, "job-refused")
    assert [error.node for error in found.errors] == ["scores"]


@pytest.mark.parametrize(
    ("initializer", "told"),
    [
        ({"op_type": "ConstantOfShape", "attributes": {"value": 1e39}}, "value: 1e+39 is infinite there"),
        ({"op_type": "RandomUniform", "attributes": {"low": -3e38, "high": 3e38}}, "high - low: 6e+38 is infinite"),
        ({"op_type": "RandomNormal", "attributes": {"mean": 0, "scale": 1e39}}, "scale: 1e+39 is infinite there"),
        ({"op_type": "RandomNormal", "attributes": {"mean": 0, "scale": 1e-60}}, "scale: 1e-60 is 0 there"),
    ],
)
def test_a_first_value_that_its_type_does_not_have_names_the_parameter(
    client: httpx.Client, document: dict[str, Any], initializer: dict[str, Any], told: str
) -> None:
    wrong = copy.deepcopy(document)
    wrong["graph"]["parameters"][1]["initializer"] = initializer
    found = problem(submit(client, wrong), 422, "job-refused")
    assert [(error.pointer, error.node) for error in found.errors] == [("/graph/parameters/1/initializer", "b")]
    assert told in found.errors[0].detail


@pytest.mark.parametrize(
    ("rule", "pointer", "told"),
    [
        ({"name": "sgd", "lr": 1e5}, "/optimizer/lr", "'lr': 100000 is infinite in float16"),
        (
            {"name": "sgd", "lr": {"schedule": "linear", "start": 0.1, "end": 1e5, "steps": 9}},
            "/optimizer/lr",
            "'lr': 100000 is infinite in float16",
        ),
        (
            {"name": "sgd", "lr": 100, "multipliers": [{"keys": "?", "lr": 1000}]},
            "/optimizer/multipliers/0/lr",
            "'lr': 100, multiplied by 1000 is infinite in float16",
        ),
        ({"name": "adam", "eps": 1e-320}, "/optimizer/eps", "'eps': 9.99989e-321 is too small for float32: give 0, or"),
        ({"name": "sgd", "lr": 1e-60}, "/optimizer/lr", "'lr': 1e-60 is too small for float32"),
        (
            {"name": "sgd", "momentum": {"schedule": "constant", "value": 1e-60}},
            "/optimizer/momentum",
            "'momentum': 1e-60 is too small for float32",
        ),
        ({"name": "sgd", "weight_decay": 1e-60}, "/optimizer/weight_decay", "'weight_decay': 1e-60 is too small"),
        (
            {"name": "adagrad", "initial_accumulator_value": 1e-60},
            "/optimizer/initial_accumulator_value",
            "'initial_accumulator_value': 1e-60 is too small for float32",
        ),
        (
            {"name": "sgd", "lr": 1e-30, "multipliers": [{"keys": "?", "lr": 1e-30}]},
            "/optimizer/multipliers/0/lr",
            "'lr': 1e-30, multiplied by 1e-30 is too small for float32",
        ),
        (
            {"name": "adam", "eps": {"schedule": "linear", "start": 1e-8, "steps": 9}},
            "/optimizer/eps",
            "'eps': 0 is what its schedule comes to, and the optimizer divides by it: end above 0",
        ),
    ],
)
def test_a_number_that_a_rule_cannot_compute_with_in_a_parameters_type_is_pointed_at(
    client: httpx.Client, tmp_path: Path, rule: dict[str, Any], pointer: str, told: str
) -> None:
    document = spec_json(save_rows(tmp_path / "rows.npz", images=np.zeros((ROWS, FEATURES), np.float16)))
    for typed in (*document["graph"]["parameters"], document["graph"]["inputs"][0]):
        typed["dtype"] = "float16"
    found = problem(submit(client, {**document, "optimizer": rule}), 422, "job-refused")
    assert [(error.pointer, error.node) for error in found.errors] == [(pointer, "w"), (pointer, "b")]
    assert told in found.errors[0].detail
    assert submit(client, document).status_code == 201


SCHEDULES = "constant, linear, cosine, polynomial, exponential, piecewise"


@pytest.mark.parametrize(
    ("optimizer", "pointer", "told"),
    [
        ({"name": "sgd", "lr": {}}, "/lr", f"{{}} has no 'schedule': give one of {SCHEDULES}, or a number alone"),
        ({"name": "sgd", "lr": {"schedule": "linaer"}}, "/lr", "schedule is 'linaer'; did you mean 'linear'?"),
        (
            {"name": "sgd", "lr": {"schedule": 3}},
            "/lr",
            f"schedule is 3: give one of {SCHEDULES}, or a number alone",
        ),
        (
            {"name": "sgd", "lr": "x" * 1000},
            "/lr",
            f"Input should be a valid number, not {'x' * 100!r}; or a schedule: {SCHEDULES}",
        ),
        (
            {"name": "adam", "betas": [0.9, {}]},
            "/betas/1",
            f"{{}} has no 'schedule': give one of {SCHEDULES}, or a number alone",
        ),
        ({"name": "adam", "betas": [0.9]}, "/betas", "[0.9] lacks item 1"),
        (
            {"name": "graph", "document": {}, "hyper": {"a": {}}},
            "/hyper/a",
            f"{{}} has no 'schedule': give one of {SCHEDULES}, or a number alone",
        ),
        ({}, "", "{} has no 'name': give one of sgd, adam, adamw, adagrad, rmsprop, ftrl, lamb, lars, graph"),
        ({"name": 3}, "", "name is 3: give one of sgd, adam, adamw, adagrad, rmsprop, ftrl, lamb, lars, graph"),
        ([1, 2], "", "Input should be an object, not a list of 2"),
        ({"name": "sgd", "nesterov": {"a": 1}}, "/nesterov", "Input should be a valid boolean, not an object with 'a'"),
    ],
)
def test_a_wrong_type_is_told_with_the_field_what_was_given_and_what_is_allowed(
    client: httpx.Client, document: dict[str, Any], optimizer: Any, pointer: str, told: str
) -> None:
    found = problem(submit(client, {**document, "optimizer": optimizer}), 422, "invalid-request")
    assert [(error.pointer, error.detail) for error in found.errors] == [(f"/optimizer{pointer}", told)]


@pytest.mark.parametrize("workers", [0, "two", None, 1.5])
def test_a_wrong_field_from_which_others_follow_is_told_alone(
    client: httpx.Client, document: dict[str, Any], workers: Any
) -> None:
    """Shards are as many as workers where nothing is said of them."""
    found = problem(submit(client, {**document, "parallelism": {"workers": workers}}), 422, "invalid-request")
    assert [error.pointer for error in found.errors] == ["/parallelism/workers"]


@pytest.mark.parametrize(
    ("changes", "pointer", "told"),
    [
        ({"clip_norm": 1e-320}, "/clip_norm", "9.99989e-321 is too small for float32: give at least 1.17549e-38"),
        ({"clip_norm": 1e60}, "/clip_norm", "1e+60 is infinite in float32"),
        (
            {"optimizer": {"name": "adam", "betas": [0.9, 1 - 1e-12]}},
            "/optimizer/betas/1",
            "0.999999999999 is 1 in float32: give at most 0.99999994",
        ),
        (
            {"optimizer": {"name": "sgd", "momentum": 1 - 1e-12}},
            "/optimizer/momentum",
            "0.999999999999 is 1 in float32: give at most 0.99999994",
        ),
        ({"ema": {"decay": 1 - 1e-12}}, "/ema/decay", "0.999999999999 is 1 in float32: give at most 0.99999994"),
        ({"optimizer": {"name": "adam", "betas": [1e-60, 0.9]}}, "/optimizer/betas/0", "too small for float32"),
        ({"ema": {"decay": 1e-320}}, "/ema/decay", "too small for float32"),
        (
            {"precision": "float16", "loss_scale": {"initial": 1e-320}},
            "/loss_scale/initial",
            "greater than or equal to",
        ),
    ],
)
def test_a_number_of_the_job_that_float32_does_not_have_is_pointed_at(
    client: httpx.Client, document: dict[str, Any], changes: dict[str, Any], pointer: str, told: str
) -> None:
    found = Problem.model_validate_json(submit(client, {**document, **changes}).content)
    assert [error.pointer for error in found.errors] == [pointer]
    assert told in found.errors[0].detail


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ([1] * 65, "65 items, and at most 16 are allowed"),
        ([1 << 40, 1 << 40], "elements, and at most 1099511627776 are allowed"),
        ([0, (1 << 63) - 1], "9223372036854775807"),
        ([1 << 40], "33554434 slices"),
    ],
)
def test_a_parameter_that_no_store_could_hold_is_refused_at_once(
    client: httpx.Client, document: dict[str, Any], shape: list[int], told: str
) -> None:
    zeros = {"op_type": "ConstantOfShape", "attributes": {"value": 0}}
    unused = {"name": "unused", "dtype": "float32", "shape": shape, "trainable": False, "initializer": zeros}
    wrong = copy.deepcopy(document)
    wrong["graph"]["parameters"].append(unused)
    found = problem(submit(client, wrong), 422, "job-refused")
    assert any(told in error.detail for error in found.errors), found
    assert all(
        error.pointer.startswith(("/graph/parameters", "/parallelism/slice_bytes", "/data/batch_size"))
        for error in found.errors
    )


def test_a_missing_column_and_an_unreadable_file_are_pointed_at(client: httpx.Client, document: dict[str, Any]) -> None:
    wrong = copy.deepcopy(document)
    wrong["data"]["columns"]["y"] = "answers"
    found = problem(submit(client, wrong), 422, "job-refused")
    assert pointers(found) == {"/data/columns/y"}
    wrong["data"]["source"]["path"] = "/etc"
    found = problem(submit(client, wrong), 422, "job-refused")
    assert pointers(found) == {"/data/source/path"}


def test_a_job_that_was_refused_can_be_mended_and_sent_with_the_same_key(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    wrong = {**document, "loss": "nothing"}
    problem(submit(client, wrong, **{"Idempotency-Key": "k"}), 422, "job-refused")
    assert submit(client, document, **{"Idempotency-Key": "k"}).status_code == 201


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_a_key_that_is_empty_or_too_long_is_refused(client: httpx.Client, document: dict[str, Any], key: str) -> None:
    problem(submit(client, document, **{"Idempotency-Key": key}), 422, "invalid-request")


def test_reports_and_heartbeats_of_strangers_are_refused(client: httpx.Client) -> None:
    problem(client.post("/v1/agents/none/heartbeat", json={}), 404, "unknown-agent")
    problem(client.post("/v1/allocations/none/reports", json={"term": 1, "seq": 1}), 404, "unknown-allocation")


def test_stale_and_illegal_reports_are_refused_by_code(client: httpx.Client, document: dict[str, Any]) -> None:
    with cast(client, stop_at=AllocationEvent.RUNNING) as (workers, _):
        job = submit(client, document).json()["id"]
        eventually(lambda: state(client, job) == "running", "the job runs")
        mine = workers[0].orders[-1].allocations[0]
        path = f"/v1/allocations/{mine.id}/reports"
        problem(client.post(path, json={"term": mine.term + 1, "seq": 90}), 409, "stale-term")
        illegal = {"term": mine.term, "seq": 91, "event": "ready"}
        problem(client.post(path, json=illegal), 422, "illegal-report")
        client.post(f"/v1/jobs/{job}/cancel")  # Or it would wait for the next workers.


def test_a_loss_that_is_not_a_number_fails_the_job_by_the_step_and_row_as_its_agent_reports_them(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    with cast(client, stop_at=AllocationEvent.RUNNING) as (workers, _):
        job = submit(client, document).json()["id"]
        eventually(lambda: state(client, job) == "running", "the job runs")
        for allocation in (worker.orders[-1].allocations[0] for worker in workers):
            metrics = MetricReport(
                split="train",
                step=1,
                samples=1,
                sums={"loss": math.nan},
                not_finite={"loss": 1},
                bad_data="row 7 of column 'x'",
            )
            report = Report(term=allocation.term, seq=92, metrics=[metrics]).model_dump_json()
            answer = client.post(f"/v1/allocations/{allocation.id}/reports", content=report, headers=JSON)
            assert answer.status_code == 204, answer.text
        ended = client.get(f"/v1/jobs/{job}").json()
        assert (ended["state"], ended["reason"]) == (
            "failed",
            "the loss is nan since step 1, and row 7 of column 'x' is not finite: correct the data",
        )


def test_parameters_that_are_not_the_jobs_are_refused_and_leave_nothing(
    directory: Path, client: httpx.Client, document: dict[str, Any]
) -> None:
    from safetensors.numpy import load, save

    right = load(parameters(6))
    wrong = {
        "missing": save({"w": right["w"]}),
        "more": save({**right, "z": right["b"]}),
        "shape": save({**right, "b": right["w"]}),
        "dtype": save({**right, "b": right["b"].astype("float64")}),
        "nonsense": b"\xff" * 64,
        "bomb": (1 << 60).to_bytes(8, "little") + b"{}",
        "cut": parameters(6)[:-1],
        "empty": b"",
    }
    with cast(client, stop_at=AllocationEvent.RUNNING) as (workers, _):
        job = submit(client, document).json()["id"]
        eventually(lambda: state(client, job) == "running", "the job runs")
        lease = next(
            allocation for worker in workers for allocation in worker.orders[-1].allocations if allocation.keeper
        )
        path = f"/v1/allocations/{lease.id}/parameters"
        query: dict[str, Any] = {"term": lease.term, "step": 6, "final": True}
        for body in wrong.values():
            problem(client.put(path, params=query, content=body), 422, "wrong-values")
        problem(client.put(path, params=query, content=b"x" * (1 << 20)), 413, "too-large")
        problem(client.put(path, params={**query, "step": 5}, content=parameters(5)), 409, "not-wanted")
        problem(client.put(path, params={**query, "term": 0}, content=parameters(6)), 409, "stale-term")
        assert list((directory / "jobs" / job).iterdir()) == []
        assert state(client, job) == "running"
        client.post(f"/v1/jobs/{job}/cancel")


def test_the_detail_says_how_many_more_errors_there_are(tmp_path: Path) -> None:
    with running(tmp_path / "server") as client:
        problem = client.post("/v1/jobs", json={"name": ""}).json()
    assert len(problem["errors"]) > 3
    assert problem["detail"].endswith(f"; and {len(problem['errors']) - 3} more")
