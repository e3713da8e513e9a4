"""Bodies that come too slowly are refused, and hold nothing."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from server_running import DEADLINE_S, eventually, running

GRACE_S = 0.3


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/uploads", "/v1/agents"])
@pytest.mark.parametrize("begins", [b"", b"{"])
def test_a_body_that_stands_still_is_refused_and_the_connection_closed(
    tmp_path: Path, path: str, begins: bytes
) -> None:
    with running(tmp_path / "server", body_grace_s=GRACE_S) as client:
        host, port = client.base_url.host, client.base_url.port
        with socket.create_connection((host, port or 0), timeout=DEADLINE_S) as slow:
            head = (
                f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
            )
            slow.sendall(head.encode() + begins)
            answer = b""
            while piece := slow.recv(4096):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 408")
        assert b'"too-slow"' in answer
        uploads = tmp_path / "server" / "uploads"
        eventually(lambda: not list(uploads.iterdir()), "what was begun is deleted")
