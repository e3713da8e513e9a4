"""The server as a process: how it tells where it is, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save
from sqlalchemy import text

from server_hands import refused
from server_running import DEADLINE_S, eventually, running, submit
from server_specs import save_rows, spec_json
from weft.agent.startup import ORPHANED_EXIT_CODE, watch_parent
from weft_server.__main__ import main
from weft_server.serving import DirectoryInUseError, locked
from weft_server.storage.database import open_database
from weft_server.storage.records import Records


@contextmanager
def process(directory: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "weft_server", "--directory", str(directory), *arguments]
    started = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment}
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def address(directory: Path, started: subprocess.Popen[bytes]) -> dict[str, Any]:
    path = directory / "server.json"
    eventually(lambda: path.exists() or started.poll() is not None, "the server tells where it is")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_server_tells_where_it_listens_and_ends_on_a_signal(tmp_path: Path) -> None:
    with process(tmp_path, "--port", "0") as started:
        found = address(tmp_path, started)
        assert found["pid"] == started.pid
        assert httpx.get(f"{found['url']}/readyz").json() == {"status": "ready"}
        with process(tmp_path, "--port", "0") as second:
            _, said = second.communicate(timeout=DEADLINE_S)
            assert second.returncode == 2
            assert re.fullmatch(rb"weft_server: .*another server works in.*\n", said)
        started.send_signal(signal.SIGTERM)
        _, log = started.communicate(timeout=DEADLINE_S)
        assert started.returncode == 0
        assert not (tmp_path / "server.json").exists()
        assert all(json.loads(line)["daemon"] == "server" for line in log.splitlines())


def test_a_server_ends_with_its_parent(tmp_path: Path) -> None:
    """And the directory that it has made is its user's."""
    with process(tmp_path / "new", "--port", "0", "--exit-with-parent") as started:
        address(tmp_path / "new", started)
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
        assert started.stdin is not None
        started.stdin.close()
        started.stdin = None
        assert started.wait(DEADLINE_S) == 0


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a server says that does not start in a directory with these options: in this process, which stays as it is
    but for what a daemon sets up for itself."""
    monkeypatch.setattr("weft_server.__main__.start_daemon", lambda *_, **__: threading.Event())

    def said(directory: Path, *options: str) -> str:
        assert main(["--directory", str(directory), "--port", "0", *options]) == 2
        return capsys.readouterr().err

    return said


def test_a_port_that_is_taken_is_said_so(tmp_path: Path, refusal: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"cannot serve on 127.0.0.1:{port}" in refusal(tmp_path, "--port", port)


def test_a_server_that_others_can_reach_does_not_start_without_a_token(
    tmp_path: Path, refusal: Callable[..., str]
) -> None:
    said = refusal(tmp_path, "--host", "0.0.0.0")
    assert said.startswith("weft_server: 0.0.0.0 can be reached from elsewhere: give a token (WEFT_SERVER_TOKEN)")


def test_a_wrong_setting_is_told_by_its_option_or_its_variable(
    tmp_path: Path, refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_SERVER_LOST_AFTER_S", "soon")
    said = refusal(tmp_path, "--port", "70000").splitlines()
    assert said == [
        "weft_server: --port is 70000; it should be less than or equal to 65535",
        "weft_server: WEFT_SERVER_LOST_AFTER_S is 'soon'; it should be a valid number",
    ]


@pytest.mark.parametrize("ends", [True, False])
def test_a_daemon_whose_parent_is_gone_stops_and_is_ended_hard_after_a_grace(ends: bool) -> None:
    reading, writing = os.pipe()
    stop, ended = threading.Event(), threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb") as parent:
        grace_s = 0.0 if ends else DEADLINE_S
        thread = watch_parent(stop, stdin=stdin, grace_s=grace_s, end=end)
        parent.write(b"what a parent writes is read and ignored")
        parent.flush()
        assert not stop.is_set()
        parent.close()
        assert stop.wait(DEADLINE_S)
        if ends:
            assert ended.wait(DEADLINE_S)
            assert codes == [ORPHANED_EXIT_CODE]
            thread.join(DEADLINE_S)
    assert thread.daemon


def test_results_that_the_database_does_not_know_are_never_deleted(tmp_path: Path, refusal: Callable[..., str]) -> None:
    result = tmp_path / "jobs" / "a1" / "parameters.safetensors"
    for kept in (result, tmp_path / "jobs" / "b2" / "parameters.safetensors"):
        kept.parent.mkdir(parents=True)
        kept.write_bytes(b"values")
    said = refusal(tmp_path)
    assert f"{result.parent} (and 1 more such folders) holds final parameters of a job that" in said
    assert len(said.splitlines()) == 1
    with running(tmp_path) as client:
        assert client.get("/readyz").status_code == 200
    assert result.read_bytes() == b"values"


def test_snapshots_that_the_database_does_not_know_are_told_of(tmp_path: Path, refusal: Callable[..., str]) -> None:
    """As where an older copy of the database was put in place: the agents that hold the job would be told to end it."""
    manifest = tmp_path / "snapshots" / "a1" / "step-10-1" / "snapshot.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_bytes(b"{}")
    told = f"{manifest.parent.parent} holds snapshots of a job that {tmp_path / 'weft.db'} does not know"
    assert told in refusal(tmp_path)
    assert manifest.read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("newer", "was made by a newer weft"),
        ("strange", "cannot be opened as weft's database: file is not a database"),
        ("truncated", "cannot be opened as weft's database: database disk image is malformed"),
        ("garbled", "cannot be used: database disk image is malformed"),
    ],
)
def test_a_database_that_cannot_be_used_is_named_in_the_last_line(
    tmp_path: Path, refusal: Callable[..., str], wrong: str, told: str
) -> None:
    path = tmp_path / "weft.db"
    engine = open_database(path)
    if wrong == "newer":
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    whole = path.read_bytes()
    page = 4096
    if wrong == "strange":
        path.write_bytes(b"no database, but rather long " * 100)
    elif wrong == "truncated":
        path.write_bytes(whole[:page])
    elif wrong == "garbled":  # but for the schema, and the version that is looked at first
        path.write_bytes(whole[: 3 * page] + b"\xaa" * (len(whole) - 3 * page))
    said = refusal(tmp_path)
    assert f"{path} {told}" in said.splitlines()[-1]
    assert len(said.splitlines()) == 1 or wrong == "garbled"


def test_a_server_whose_database_was_moved_is_not_ready(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        assert client.get("/readyz").status_code == 200
        (tmp_path / "weft.db").rename(tmp_path / "away.db")
        assert "was moved or replaced" in client.get("/readyz").json()["detail"]
        (tmp_path / "weft.db").write_bytes(b"")
        assert client.get("/readyz").status_code == 503
        job = spec_json(save_rows(tmp_path / "rows.npz"))
        assert "put it back" in refused(submit(client, job), 503, "records-unavailable").detail
        (tmp_path / "away.db").replace(tmp_path / "weft.db")
        assert client.get("/readyz").status_code == 200


def test_a_deleted_database_is_written_again_once_no_other_is_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "weft.db"
    engine = open_database(path)
    records = Records(engine)
    records.hold()
    for each in tmp_path.glob("weft.db*"):
        each.unlink()
    path.write_bytes(b"another")
    assert (records.put_back(), path.read_bytes()) == (False, b"another")
    path.unlink()
    assert (records.put_back(), records.is_deleted, records.is_moved) == (True, False, False)
    records.release()
    engine.dispose()


def test_records_outlive_the_folder_that_they_are_in(tmp_path: Path) -> None:
    directory = tmp_path / "server"
    kept = [directory / name for name in ("server.json", "agents.key", "server.lock")]
    with running(directory, token="a-secret-of-users") as client:
        client.headers["Authorization"] = "Bearer a-secret-of-users"
        before = [path.read_text() for path in kept]
        document = spec_json(save_rows(tmp_path / "rows.npz"))
        first = submit(client, document).json()["id"]
        for _ in range(2):
            shutil.rmtree(directory)
            eventually((directory / "weft.db").exists, "the database is written again")
            assert submit(client, document).status_code == 201
            eventually(kept[0].exists, "the server tells its address again")
            assert [path.read_text() for path in kept] == before
            with pytest.raises(DirectoryInUseError), locked(directory):
                pass
        with ThreadPoolExecutor(9) as threads:  # each has a connection of its own
            answers = list(threads.map(lambda _: client.get(f"/v1/jobs/{first}/spec").status_code, range(18)))
        assert set(answers) == {200}
        assert client.get("/readyz").status_code == 200
    with running(directory) as client:
        assert len(client.get("/v1/jobs").json()["jobs"]) == 3


def modes(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): oct(path.stat().st_mode & 0o777) for path in folder.rglob("*")}


def test_what_a_server_keeps_is_its_user_s_alone(tmp_path: Path) -> None:
    """Also what an earlier release has made readable for all."""
    state = tmp_path / "state"
    (state / "jobs").mkdir(mode=0o755, parents=True)
    open_database(state / "weft.db").dispose()
    (state / "weft.db").chmod(0o644)
    before = os.umask(0o022)
    try:
        with process(state, "--port", "0") as started:
            uploads = f"{address(state, started)['url']}/v1/uploads"
            assert httpx.post(uploads, content=save({"b": np.zeros(3)})).status_code == 201
            found = modes(state)
            assert {"weft.db", "weft.db-wal", "server.json", "server.lock", "jobs", "uploads"} <= found.keys()
            assert not {name: mode for name, mode in found.items() if not mode.endswith("00")}
    finally:
        os.umask(before)
