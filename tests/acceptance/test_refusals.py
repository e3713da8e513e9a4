"""What a real server refuses before anything is scheduled, and how it says so."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pytest

import weft
from acceptance_place import Place
from weft.api.problem import Problem


@pytest.fixture
def body(place: Place, example: ModuleType) -> dict[str, Any]:
    """A job that would be accepted."""
    loss, accuracy = example.build()
    data = weft.numpy_data(place.digits, evaluate=(place.rows - 360, place.rows))
    spec = weft.job_spec(loss, metrics={"accuracy": accuracy}, data=data, steps=1, name="refused")
    document: dict[str, Any] = spec.model_dump(mode="json")
    return document


def refuse(place: Place, **request: Any) -> Problem:
    response = httpx.post(f"{place.cluster.url}/v1/jobs", timeout=30, **request)
    assert 400 <= response.status_code < 500, response.text
    assert response.headers["content-type"].startswith("application/problem+json")
    return Problem.model_validate_json(response.content)


def test_an_unknown_operator_is_named_with_its_node(place: Place, body: dict[str, Any]) -> None:
    node = next(one for one in body["graph"]["nodes"] if one["op_type"] == "Relu")
    node["op_type"] = "Rely"
    problem = refuse(place, json=body)
    assert any(
        e.node == node["name"] and "Rely" in e.detail and e.pointer.startswith("/graph/nodes/") for e in problem.errors
    )


def test_a_wrong_shape_is_named_with_its_node(place: Place, body: dict[str, Any]) -> None:
    parameter = next(one for one in body["graph"]["parameters"] if one["name"] == "hidden.weight")
    parameter["shape"] = [64, 127]
    problem = refuse(place, json=body)
    assert any(e.node is not None and "127" in e.detail for e in problem.errors), problem


def test_a_wrong_dtype_is_named_with_its_node(place: Place, body: dict[str, Any]) -> None:
    parameter = next(one for one in body["graph"]["parameters"] if one["name"] == "hidden.weight")
    parameter["dtype"] = "float64"
    problem = refuse(place, json=body)
    assert any(e.node is not None and "float64" in e.detail for e in problem.errors), problem


def test_a_missing_column_is_named_with_its_pointer_and_what_there_is(place: Place, body: dict[str, Any]) -> None:
    body["data"]["columns"]["label"] = "digit"
    problem = refuse(place, json=body)
    assert any(e.pointer == "/data/columns/label" and "digit" in e.detail for e in problem.errors), problem


def test_a_column_of_another_dtype_is_named(place: Place, body: dict[str, Any]) -> None:
    np.savez(
        place.folder / "float_labels.npz", image=np.zeros((place.rows, 1, 8, 8), np.float32), label=np.zeros(place.rows)
    )
    body["data"]["source"]["path"] = "float_labels.npz"
    problem = refuse(place, json=body)
    assert any(e.pointer == "/data/columns/label" and "float64" in e.detail for e in problem.errors), problem


@pytest.mark.parametrize("path", ["nowhere.npz", "nonsense.npz", "/etc/passwd", "../secret.npz"])
def test_a_file_that_cannot_be_read_is_named(place: Place, body: dict[str, Any], path: str) -> None:
    Path(place.folder / "nonsense.npz").write_bytes(b"no archive" * 100)
    body["data"]["source"]["path"] = path
    problem = refuse(place, json=body)
    assert any(e.pointer == "/data/source/path" for e in problem.errors), problem


def test_fifty_megabytes_of_nonsense_are_refused_and_the_server_lives(place: Place) -> None:
    nonsense = np.random.default_rng(0).bytes(50 << 20)
    url = f"{place.cluster.url}/v1/jobs"
    # The server may answer and close while the client still writes: then there is no answer to read.
    try:
        response = httpx.post(url, content=nonsense, headers={"Content-Type": "application/json"}, timeout=30)
    except (httpx.WriteError, httpx.ReadError):
        pass
    else:
        assert response.status_code == 413
    assert httpx.get(f"{place.cluster.url}/healthz").status_code == 200


def test_a_megabyte_of_brackets_is_refused(place: Place) -> None:
    refuse(place, content=b"[" * (1 << 20), headers={"Content-Type": "application/json"})
