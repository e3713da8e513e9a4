"""`weft doctor`: what it finds, and what it advises."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import shutil
import socket
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from sdk_fakes import START, Script, answers, problem, unavailable
from weft.api.agent import AgentInfo, AgentKind, AgentList
from weft.api.job import JobPage
from weft.api.lifecycle import AgentState
from weft.cli import doctor
from weft.cli.app import app
from weft.exclusive import hold_directory

Look = Callable[..., dict[str, dict[str, Any]]]
RELEASE = httpx.Response(200, json={"info": {"version": version("weft")}})
OTHER = httpx.Response(200, json={"info": {"version": "9.9"}})
READY = httpx.Response(200, json={"status": "ready"})
GOOD = (READY, RELEASE, JobPage(jobs=[]))


def agent(kind: AgentKind, state: AgentState = AgentState.ALIVE) -> AgentInfo:
    return AgentInfo(id="a", name=f"{kind}-0", kind=kind, state=state, pid=7, jobs=[], registered_at=START, silent_s=0)


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Look:
    """What the command finds, by name; the exit code is checked."""
    monkeypatch.chdir(tmp_path)
    for name in ("WEFT_URL", "WEFT_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def look_(script: Script, *arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
        monkeypatch.setattr(doctor, "Client", lambda _url, **settings: script.client(retry=settings["retry"]))
        result = CliRunner().invoke(app, ["doctor", "-o", "json", *arguments], catch_exceptions=False)
        assert result.exit_code == code
        return {check["name"]: check for check in json.loads(result.stdout)["checks"]}

    return look_


def test_all_is_well_with_a_cluster_that_runs(look: Look) -> None:
    agents = AgentList(agents=[agent(AgentKind.WORKER), agent(AgentKind.SHARD)])
    found = look(answers(*GOOD, agents))
    assert set(found) == {
        "python", "packages", "pytorch", "port", "disk", "shared memory", "open files", "gpu", "data", "server",
        "token", "agents",
    }  # fmt: skip
    assert found["agents"]["found"] == "1 worker, 1 shard"
    assert found["server"]["found"] == f"ready at http://127.0.0.1:8470, release {version('weft')}"
    assert {check["status"] for name, check in found.items() if name not in {"port", "pytorch", "gpu"}} == {"ok"}


def test_each_check_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "Client", lambda _url, **settings: answers(unavailable).client(retry=settings["retry"]))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert all(line.split()[0] in {"ok", "warn"} for line in result.stdout.splitlines())
    assert result.stdout.splitlines()[-1].startswith("warn  server         no server at http://127.0.0.1:8470 (")


@pytest.mark.parametrize(
    ("given", "name", "status", "found"),
    [
        ([unavailable], "server", "warn", "no server at"),
        ([problem(503, "not-ready", "the database is away")], "server", "fail", "the database is away"),
        ([READY, httpx.Response(200, text="<html>")], "server", "fail", "no weft server"),
        ([READY, unavailable, JobPage(jobs=[]), AgentList(agents=[])], "server", "warn", "but slow to say its release"),
        ([READY, OTHER, JobPage(jobs=[]), AgentList(agents=[])], "server", "warn", "release 9.9; here is"),
        ([READY, RELEASE, problem(401, "unauthenticated")], "token", "fail", "the server asks for a token"),
        ([*GOOD, AgentList(agents=[])], "agents", "warn", "no worker is there"),
        (
            [*GOOD, AgentList(agents=[agent(AgentKind.WORKER), agent(AgentKind.SHARD, AgentState.SUSPECTED)])],
            "agents",
            "warn",
            "silent: shard-0",
        ),
    ],
)
def test_what_is_wrong_with_a_server_is_told_with_the_remedy(
    look: Look, given: list[Any], name: str, status: str, found: str
) -> None:
    check = look(answers(*given), code=int(status == "fail"))[name]
    assert check["status"] == status
    assert found in check["found"]
    assert check["remedy"]


def test_a_server_that_was_named_has_to_answer(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_URL", "http://127.0.0.1:8470")
    assert look(answers(unavailable), code=1)["server"]["status"] == "fail"


def test_a_port_that_is_in_use_is_well_where_a_cluster_has_it(look: Look, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        check = look(answers(unavailable), "--port", str(port))["port"]
        assert (check["status"], check["found"]) == ("warn", f"another program has port {port}")
        assert check["remedy"].endswith(f"up --port {port + 1}")
        with hold_directory(tmp_path):
            check = look(answers(unavailable), "--port", str(port), "--directory", str(tmp_path))["port"]
        assert (check["status"], f"a cluster runs in {tmp_path} (process {os.getpid()})" in check["found"]) == (
            "ok",
            True,
        )
        ours = answers(*GOOD, AgentList(agents=[agent(AgentKind.WORKER)]))
        check = look(ours, "--port", str(port), "--url", f"http://127.0.0.1:{port}")["port"]
        assert (check["status"], check["found"]) == ("ok", f"{port} is that of the server below")


def test_what_this_machine_lacks_is_told(look: Look, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    information = tmp_path / "gpus" / "0000:01:00.0" / "information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t\t NVIDIA H100\nIRQ: 12\n")
    monkeypatch.setattr(doctor, "GPUS", tmp_path / "gpus")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(doctor, "_is_installed", lambda name: name != "uvicorn")
    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 4096))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    found = look(answers(unavailable), "--data-root", "nowhere", code=1)
    found.pop("port")  # which this machine may use
    assert {name: check["status"] for name, check in found.items() if check["status"] != "ok"} == {
        "packages": "warn", "pytorch": "warn", "gpu": "warn", "shared memory": "warn", "server": "warn",
        "open files": "fail", "disk": "fail", "data": "fail",
    }  # fmt: skip
    assert all(check["remedy"] for check in found.values() if check["status"] != "ok")
    assert "without uvicorn" in found["packages"]["found"]
    assert found["gpu"]["found"] == "NVIDIA H100, without CuPy"
    assert found["data"]["found"] == f"there is no directory {tmp_path / 'nowhere'}"
