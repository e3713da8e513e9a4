"""Connections that bring no request are bounded in time and number."""

from __future__ import annotations

import logging
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from server_running import DEADLINE_S, eventually, running
from weft_server.connections import Seldom

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POSTED = b"POST /v1/nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"


def connected(client: httpx.Client) -> socket.socket:
    return socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=DEADLINE_S)


def dripped(connection: socket.socket) -> bool:
    """A byte of a header more; whether the server still listens."""
    try:
        connection.sendall(b"a")
        connection.settimeout(0.01)
        return bool(connection.recv(1))
    except TimeoutError:
        return True
    except OSError:
        return False


@pytest.mark.parametrize(
    "begins", [b"", HEAD, HEAD + b"\r\n", POSTED], ids=["silent", "head", "next head", "unread body"]
)
def test_a_head_that_does_not_come_in_time_ends_its_connection(tmp_path: Path, begins: bytes) -> None:
    """However steadily its bytes drip: at first, after a request that was answered, and as a body that nobody reads."""
    with running(tmp_path / "server", head_s=0.2) as client, connected(client) as slow:
        slow.sendall(begins)
        if b"\r\n\r\n" in begins:
            assert slow.recv(1 << 16).startswith(b"HTTP/1.1 ")
        if begins == b"":
            assert slow.recv(1) == b""
        else:
            eventually(lambda: not dripped(slow), "the connection is closed")
        assert client.get("/healthz").status_code == 200


def test_one_connection_too_many_takes_the_place_of_the_one_that_waits_longest(tmp_path: Path) -> None:
    """And of none on which a request is being answered."""
    with running(tmp_path / "server", most_connections=4, lost_after_s=DEADLINE_S) as client, ExitStack() as held:
        agent = client.post("/v1/agents", json={"kind": "worker", "name": "worker-0", "pid": 1}).json()["id"]
        client.close()
        at = (client.base_url.host, client.base_url.port or 0)
        url = f"{client.base_url}/v1/agents/{agent}/heartbeat"
        beating = held.enter_context(socket.create_connection(at, timeout=DEADLINE_S))
        version = httpx.post(url, json={}).json()["version"]
        body = b'{"known": %d, "wait_s": 1}' % version
        head = f"POST /v1/agents/{agent}/heartbeat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        beating.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        idle = [held.enter_context(socket.create_connection(at, timeout=DEADLINE_S)) for _ in range(10)]
        for gone in idle[:6]:
            assert gone.recv(1) == b""
        assert httpx.get(f"{client.base_url}/healthz").status_code == 200
        assert beating.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_without_descriptors_the_server_says_so_once_and_works_again(tmp_path: Path) -> None:
    """Started with few files, it bounds connections below; what uses files up otherwise floods no log."""
    few = 48
    limited = f"import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, ({few}, {few})); "
    server = [sys.executable, "-c", limited + "runpy.run_module('weft_server', run_name='__main__')"]
    with (
        subprocess.Popen(
            [*server, "--directory", str(tmp_path), "--port", "0"], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        ) as started,
        ExitStack() as held,
    ):
        try:
            file = tmp_path / "server.json"
            eventually(file.exists, "the server listens")
            url = httpx.URL(httpx.Response(200, content=file.read_bytes()).json()["url"])
            for _ in range(100):
                held.enter_context(socket.create_connection((url.host, url.port or 0), timeout=DEADLINE_S))
            assert httpx.get(url.join("/readyz"), timeout=DEADLINE_S).status_code == 200
            # What else may take the files: here they are taken away below the connections that there may be.
            resource.prlimit(started.pid, resource.RLIMIT_NOFILE, (8, few))
            for _ in range(3):
                turned_away = held.enter_context(
                    socket.create_connection((url.host, url.port or 0), timeout=DEADLINE_S)
                )
                with suppress(ConnectionResetError):
                    assert turned_away.recv(1) == b""
            resource.prlimit(started.pid, resource.RLIMIT_NOFILE, (few, few))
            assert httpx.get(url.join("/readyz"), timeout=DEADLINE_S).status_code == 200
        finally:
            started.terminate()
            said = started.communicate(timeout=DEADLINE_S)[1].decode()
    assert said.count("new connections are turned away") == 1
    assert said.count(f"{few // 2} connections at the same time, not 16384") == 1
    assert said.count(f"all {few // 2} connections are in use") == (few // 2 < 100)
    assert "Traceback" not in said


def test_what_strangers_send_is_told_of_once_a_minute() -> None:
    now = [0.0]
    seldom = Seldom(lambda: now[0])

    def told(message: str, level: int = logging.WARNING) -> bool:
        return seldom.filter(logging.LogRecord("uvicorn.error", level, "", 0, message, (), None))

    assert [told("Invalid"), told("Invalid"), told("other"), told("Invalid", logging.ERROR)] == [
        True,
        False,
        True,
        True,
    ]
    now[0] = 60.0
    assert told("Invalid")


def test_a_caller_that_leaves_in_its_body_is_no_error_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path / "server") as client:
        head = (
            b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
        )
        with connected(client) as leaving:
            leaving.sendall(head + b"{")
        with connected(client) as invalid:
            invalid.sendall(b"\x00\r\n\r\n")
            assert invalid.recv(1 << 16).startswith(b"HTTP/1.1 400")
        assert client.get("/healthz").status_code == 200
    assert "failed" not in caplog.text
