"""Hundreds of broken ONNX files at a real server: none harms it, and every refusal is a problem document."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import onnx
import pytest
from google.protobuf.message import DecodeError

from acceptance_processes import await_that, descendants
from onnx_mutation import HOSTILE, mutants
from weft.agent.children import ProcessLimits
from weft.api.model import ReadRequest
from weft.api.problem import Problem
from weft_server.forks import Forks
from weft_server.onnx_import.request import MODEL, ModelRequest
from weft_server.submissions import read_onnx

FILES = 100
SEED = 20240506
MOST_BYTES = 1 << 30
"""Of resident memory, in the server and in whatever it starts."""
EACH_S = 10.0
"""Long for any of these files."""


@dataclass
class Place:
    client: httpx.Client
    pid: int

    def peak_bytes(self) -> int:
        """The most that the server, or a process below it, has had."""
        return max(peak_bytes(pid) for pid in {self.pid, *descendants(self.pid)})


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("fuzz")
    command = [sys.executable, "-m", "weft_server", "--directory", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ) as started:
        try:
            told = folder / "server.json"
            await_that(lambda: told.exists() or started.poll() is not None, "the server to listen", 60)
            with httpx.Client(base_url=json.loads(told.read_text())["url"], timeout=60) as client:
                yield Place(client, started.pid)
        finally:
            started.kill()


def sent(place: Place, body: bytes) -> str:
    """`read`, or the problem's code. Fails where the answer is neither."""
    response = place.client.post("/v1/models", content=body)
    if response.status_code == 201:
        assert response.json()["graph"]["nodes"] is not None
        return "read"
    problem = Problem.model_validate_json(response.content)
    assert response.headers["content-type"] == "application/problem+json"
    assert (response.status_code, problem.status, problem.code) == (422, 422, "model-refused"), problem
    assert problem.detail
    assert len(response.content) < 1 << 16
    assert "takes more than" not in problem.detail, (problem.detail, body[:4000].hex())
    return problem.code


def is_protobuf(body: bytes) -> bool:
    try:
        onnx.ModelProto().ParseFromString(body)
    except DecodeError:
        return False
    return True


def test_none_of_many_broken_files_harms_the_server(place: Place) -> None:
    parsed = 0
    answers: Counter[str] = Counter()
    for body in mutants(FILES, SEED):
        parsed += is_protobuf(body)
        answers[sent(place, body)] += 1
    assert answers.total() == FILES
    assert parsed >= FILES * 3 / 5
    assert answers["model-refused"] > FILES / 5
    assert answers["read"] > FILES / 10, "some changes are harmless, or files are refused for the wrong reason"
    assert place.peak_bytes() < MOST_BYTES
    assert place.client.get("/readyz").json() == {"status": "ready"}


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks("weft_server.submissions")
    yield made
    made.close()


async def there() -> bool:
    return False


@pytest.mark.parametrize("what", HOSTILE)
def test_what_asks_for_more_than_it_brings_costs_little(forks: Forks, what: str, tmp_path: Path) -> None:
    """Neither time nor memory runs out."""
    (tmp_path / MODEL).write_bytes(HOSTILE[what]())
    limits = ProcessLimits(memory_bytes=MOST_BYTES, seconds=EACH_S, file_bytes=MOST_BYTES, network=False)
    asked = ModelRequest(id="one", folder=str(tmp_path), options=ReadRequest(), most_bytes=MOST_BYTES)
    asyncio.run(forks.run(limits, there, read_onnx, asked))
