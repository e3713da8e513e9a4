"""ONNX files over HTTP: what is made of them, what is refused, and that nothing of it reaches the server."""

from __future__ import annotations

import io
import os
import signal
import socket
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from safetensors.numpy import load_file

from acceptance_processes import alive, descendants
from onnx_models import floats, initializer, model, weights
from server_running import eventually, running
from weft_graph.check import check
from weft_graph.json_form import graph_from_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    with running(folder, lost_after_s=30, model_bytes=1 << 20, model_seconds=20) as client:
        yield client


def perceptron() -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "times")]
    return model(nodes, [floats("x", "N", 3)], ("y",), [weights("w", 3, 4)])


def send(client: httpx.Client, body: bytes, **query: Any) -> httpx.Response:
    return client.post("/v1/models", content=body, params=query)


def refusal(response: httpx.Response, status: int = 422, code: str = "model-refused") -> str:
    assert response.headers["content-type"] == "application/problem+json", response.text
    document = response.json()
    assert (response.status_code, document["status"], document["code"]) == (status, status, code)
    detail: str = document["detail"]
    return detail


def test_a_model_becomes_a_graph_that_a_job_takes_and_an_upload(client: httpx.Client, folder: Path) -> None:
    response = send(client, perceptron().SerializeToString(), loss="cross_entropy", metric="accuracy")
    assert response.status_code == 201, response.text
    read = response.json()
    check(graph_from_json(read["graph"]))
    assert (read["loss"], read["metrics"], read["targets"]) == ("loss", {"accuracy": "accuracy"}, ["labels"])
    assert read["init_from"] == {"upload": read["id"]}
    assert [each["name"] for each in read["outputs"]] == ["loss", "accuracy", "y"]
    assert read["inputs"][1] == {"name": "labels", "dtype": "int64", "shape": ["batch"]}
    assert read["parameters"] == [{"name": "w", "dtype": "float32", "shape": [3, 4], "trainable": True}]
    values = load_file(folder / "uploads" / f"{read['id']}.safetensors")
    np.testing.assert_array_equal(values["w"], np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    rows = folder / "rows.npz"
    np.savez(rows, x=np.ones((8, 3), np.float32), labels=np.zeros(8, np.int64))
    job = {
        **{name: read[name] for name in ("graph", "loss", "metrics", "init_from")},
        "data": {"source": {"path": str(rows)}, "columns": {"x": "x", "labels": "labels"}, "batch_size": 4},
        "run": {"steps": 2},
    }
    made = client.post("/v1/jobs", json=job)
    assert made.status_code == 201, made.text
    assert client.get(f"/v1/jobs/{made.json()['id']}/spec").json()["graph"] == read["graph"]
    lacking = refusal(client.post("/v1/jobs", json={**job, "init_from": None}), code="job-refused")
    assert lacking.startswith("parameter 'w' has no first value of its own, and a job's document holds none: submit it")
    for init_from, told in ((None, lacking), (read["init_from"], None)):
        run = client.post("/v1/jobs", params={"dry_run": "true"}, json={**job, "init_from": init_from})
        assert (run.status_code, run.json()["lacking"]) == (200, told)
    assert list((folder / "models").iterdir()) == []


def test_options_say_how_it_is_read(client: httpx.Client) -> None:
    body = perceptron().SerializeToString()
    assert send(client, body, frozen="w").json()["parameters"][0]["trainable"] is False
    constant = send(client, body, constant="w").json()
    assert (constant["parameters"], constant["init_from"]) == ([], None)
    assert send(client, body, shape="x:7,3").json()["inputs"][0]["shape"] == [7, 3]
    assert "no output 'z'; there are 'y'" in refusal(send(client, body, loss="mse", output="z"))
    for wrong in ("x", "x:-1", ":3", "x:3,,4", f"x:{10**30}", "x:٣"):
        assert "x:batch,3,224,224" in refusal(send(client, body, shape=wrong), code="invalid-request")
    refusal(send(client, body, shape=f"x:{10**14},3"))
    refusal(send(client, body, frozen=["w"] * 257), code="invalid-request")
    assert "which is no input" in refusal(send(client, body, shape="z:3"))
    assert "query 'metrics'" in refusal(send(client, body, metrics="accuracy"), code="invalid-request")
    told = send(client, body, frozen=["w", "encoder.*"]).json()["warnings"]
    assert told == ["frozen 'encoder.*' is no parameter's name and no node's"]


def test_several_losses_repeat_their_words(client: httpx.Client) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "times"),
        helper.make_node("Softmax", ["h"], ["y"], "softmax", axis=-1),
    ]
    body = model(nodes, [floats("x", "N", 3)], ("y",), [weights("w", 3, 4)]).SerializeToString()
    read = send(client, body, loss=["cross_entropy", "0.5*mse"], output=["y", "h"], target=["kind", "size"]).json()
    check(graph_from_json(read["graph"]))
    assert read["metrics"] == {"y_cross_entropy": "y_cross_entropy", "h_mse": "h_mse"}
    assert read["targets"] == ["kind", "size"]
    assert "made by node 'softmax', a Softmax: cross_entropy takes logits" in read["warnings"][0]
    assert "2 losses, and `output` is given 1 times" in refusal(send(client, body, loss=["mse", "l1"], output="y"))
    assert send(client, body, loss="").json()["loss"] is None


def with_optimizer(**attributes: float) -> bytes:
    """loss = mean((x w)^2), and a step of Adagrad on w."""
    domain = "ai.onnx.preview.training"
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Mul", ["p", "p"], ["q"]),
        helper.make_node("ReduceMean", ["q"], ["loss"], keepdims=0),
        helper.make_node("Gradient", ["w", "x"], ["dw"], "gradient", domain=domain, xs=["w"], zs=["x"], y="loss"),
        helper.make_node("Adagrad", ["r", "t", "w", "dw", "h"], ["w2", "h2"], "step", domain=domain, **attributes),
    ]
    values = [weights("w", 3, 1), initializer("r", np.array(0.5, np.float32))]
    fed = [floats("x", "N", 3), helper.make_tensor_value_info("t", TensorProto.INT64, []), floats("h", 3, 1)]
    return model(nodes, fed, ("w2", "h2"), values, domains=[domain]).SerializeToString()


def test_a_models_own_optimizer_is_the_rule_of_its_jobs(client: httpx.Client) -> None:
    read = send(client, with_optimizer(epsilon=0.25), loss="loss").json()
    assert read["optimizer"]["name"] == "adagrad"
    assert (read["optimizer"]["lr"], read["optimizer"]["eps"]) == (0.5, 0.25)
    assert send(client, perceptron().SerializeToString()).json()["optimizer"] is None
    assert "adagrad: eps: " in refusal(send(client, with_optimizer(epsilon=-1.0)))


def external(location: str) -> bytes:
    proto = perceptron()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return proto.SerializeToString()


def archive(**files: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as written:
        for name, content in files.items():
            written.writestr(name.replace("__", "."), content)
    return held.getvalue()


def test_an_archive_has_the_elements_beside_the_model(client: httpx.Client, folder: Path) -> None:
    data = np.arange(12, dtype=np.float32)
    response = send(client, archive(m__onnx=external("w.bin"), w__bin=data.tobytes()))
    assert response.status_code == 201, response.text
    values = load_file(folder / "uploads" / f"{response.json()['id']}.safetensors")
    np.testing.assert_array_equal(values["w"].ravel(), data)


def test_what_is_no_model_is_a_problem(client: httpx.Client) -> None:
    assert "it breaks off or is damaged" in refusal(send(client, b"\xff\xff\xff"))
    assert "the model has no graph" in refusal(send(client, b""))
    # Elements outside, of whatever is there, are nobody's who sends a plain file.
    assert "initializer 'w'" in refusal(send(client, external("/etc/passwd")))
    assert "no path inside the model's folder" in refusal(send(client, archive(m__onnx=external("../../weft.db"))))
    assert "no zip archive" in refusal(send(client, archive(m__onnx=b"")[:40]))
    assert "the archive has 0 files that end in .onnx" in refusal(send(client, archive(a=b"x")))
    assert "leads out of it" in refusal(send(client, archive(**{"../m__onnx": b"x"})))
    bomb = archive(m__onnx=perceptron().SerializeToString(), big=bytes(1 << 28))
    assert len(bomb) < 1 << 20
    assert "the archive's files have more than" in refusal(send(client, bomb))
    refusal(send(client, bytes((1 << 20) + 1)), 413, "too-large")
    gone = perceptron()
    gone.graph.node[0].op_type = "Nonsense"
    document = send(client, gone.SerializeToString()).json()
    assert document["errors"][0]["node"] == "times"
    assert "Nonsense" in document["detail"]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["m.onnx", "m.onnx"], "the archive has the file 'm.onnx' twice"),
        (["m.onnx", "./m.onnx"], "the archive has the file './m.onnx' twice"),
        (["a", "a/m.onnx"], "the archive's file 'a/m.onnx' lies in 'a', which is a file"),
        (["a/b/m.onnx", "a"], "the archive's file 'a/b/m.onnx' lies in 'a', which is a file"),
        (["m.onnx", "n" * 5000], "has a name of 5000 bytes"),
        (["m.onnx", "n" * 256], "has a name of 256 bytes"),
        (["m.onnx", "n/" * 600 + "n"], "has a name of 1201 bytes"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_of_an_archive_that_are_no_files_of_one_folder(client: httpx.Client, names: list[str], told: str) -> None:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as written:
        for name in names:
            written.writestr(name, perceptron().SerializeToString())
    assert told in refusal(send(client, held.getvalue()))


def greedy(elements: int) -> bytes:
    """A model whose one initializer is sparse: a few bytes in the file, many in memory."""
    proto = perceptron()
    tensor = proto.graph.initializer.pop()
    sparse = proto.graph.sparse_initializer.add(dims=[elements // 4, 4])
    sparse.values.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0]))
    sparse.indices.CopyFrom(helper.make_tensor("w_indices", TensorProto.INT64, [1], [0]))
    proto.graph.input[0].CopyFrom(floats("x", "N", elements // 4))
    assert tensor.name == "w"
    return proto.SerializeToString()


def test_a_model_that_takes_too_much_is_refused_and_the_next_one_is_read(client: httpx.Client) -> None:
    detail = refusal(send(client, greedy(1 << 30)))
    assert "memory" in detail or "elements" in detail or "bytes" in detail
    assert send(client, perceptron().SerializeToString()).status_code == 201


def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """Which of the two it is told depends on how much of its time the machine gave it."""
    with running(tmp_path, lost_after_s=30, model_seconds=0.005) as client:
        document = send(client, perceptron().SerializeToString()).json()
        assert document["code"] in {"model-refused", "no-process"}
        assert "0.005 s" in document["detail"]


def test_the_process_that_forks_is_started_again_and_ends_with_the_server(tmp_path: Path) -> None:
    with running(tmp_path, lost_after_s=30) as client:
        before = descendants(os.getpid())
        assert send(client, perceptron().SerializeToString()).status_code == 201
        (started,) = descendants(os.getpid()) - before
        os.kill(started, signal.SIGKILL)
        eventually(lambda: not alive(started), "the process has ended")
        assert send(client, perceptron().SerializeToString()).status_code == 201
        (again,) = descendants(os.getpid()) - before
    assert again not in descendants(os.getpid())


@contextmanager
def half_sent(client: httpx.Client, length: int) -> Iterator[socket.socket]:
    """A connection on which a model is announced, and does not come."""
    head = f"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    with socket.create_connection((client.base_url.host, client.base_url.port or 80)) as connection:
        connection.sendall(head.encode() + b"\x08")
        yield connection


def coming(folder: Path) -> int:
    return len(list((folder / "models").glob("*/model")))


def test_a_place_is_taken_before_the_body_is_read(tmp_path: Path) -> None:
    whole = perceptron().SerializeToString()
    with running(tmp_path, lost_after_s=30, waiting_models=3) as client, ExitStack() as held:
        for number in range(2):
            held.enter_context(half_sent(client, 100))
            eventually(lambda: coming(tmp_path) == number + 1, "the body comes")  # noqa: B023
        response = send(client, whole)
        assert "2 models" in refusal(response, 503, "too-many-models")
        assert coming(tmp_path) == 2
        held.close()
        eventually(lambda: coming(tmp_path) == 0, "the files of those that hung up are deleted")
        eventually(lambda: send(client, whole).status_code == 201, "their places are free")


def test_one_users_bodies_that_come_have_a_bound_together(tmp_path: Path) -> None:
    with running(tmp_path, lost_after_s=30, models_bytes=2000) as client, half_sent(client, 900):
        eventually(lambda: coming(tmp_path) == 1, "the body comes")
        assert "900 bytes of models" in refusal(send(client, bytes(101)), 503, "too-many-models")
        assert "no ONNX model" in refusal(send(client, bytes(100)))
        refusal(client.post("/v1/models", content=iter([b"x"])), 503, "too-many-models")  # of no length that is told


def test_a_body_has_its_time(tmp_path: Path) -> None:
    with running(tmp_path, lost_after_s=30, model_body_s=0.3) as client, half_sent(client, 100) as connection:
        connection.settimeout(20)
        answer = connection.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408")
        eventually(lambda: coming(tmp_path) == 0, "nothing is left of it")
