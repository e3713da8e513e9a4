"""A disk without room: documents are refused with the remedy, and taken again once there is room."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from server_hands import Hand, refused
from server_running import eventually, running, submit
from server_specs import save_rows, spec_json
from weft_server import bodies

ID = UUID(int=7)
SMALL = save({"b": np.zeros(3, np.float32)})


def test_uploads_work_again_once_a_full_disk_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`/dev/full` refuses what is written as a full disk does: here as a small body is flushed, and as it is closed."""
    monkeypatch.setattr("weft_server.routes.uploads.uuid4", lambda: ID)
    monkeypatch.setattr("weft_server.storage.uploads.MOST_AT_ONCE", 2)
    with running(tmp_path / "server") as client:
        being_written = tmp_path / "server" / "uploads" / f".upload-{ID.hex}"
        for _ in range(3):
            being_written.symlink_to("/dev/full")
            problem = refused(client.post("/v1/uploads", content=SMALL), 507, "not-stored")
            assert "No space left on device; make room on it" in problem.detail
            assert not being_written.is_symlink()
        assert client.post("/v1/uploads", content=SMALL).status_code == 201


def test_values_to_be_set_are_refused_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_server.routes.values.uuid4", lambda: ID)
    with running(tmp_path / "server") as client:
        Hand(client)
        job = submit(client, spec_json(save_rows(tmp_path / "rows.npz"))).json()["id"]
        folder = tmp_path / "server" / "jobs" / job
        folder.mkdir(exist_ok=True)
        (folder / f".upload-{ID.hex}").symlink_to("/dev/full")
        answer = client.put(f"/v1/jobs/{job}/values", content=SMALL)
        assert "No space left" in refused(answer, 507, "not-stored").detail


def test_a_document_that_would_leave_no_room_for_the_records_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = bodies.KEPT_FREE_BYTES + len(SMALL)
    monkeypatch.setattr(bodies.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with running(tmp_path / "server") as client:
        assert client.post("/v1/uploads", content=SMALL).status_code == 201
        larger = SMALL + b"\0"
        told = refused(client.post("/v1/uploads", content=larger), 507, "not-stored").detail
        assert f"the document's {len(larger)} bytes do not fit: the server's disk has {free} bytes free" in told
        untold = client.post("/v1/uploads", content=iter([larger]))  # in chunks, without a length
        refused(untold, 507, "not-stored")
        assert len(list((tmp_path / "server" / "uploads").iterdir())) == 1


def test_a_server_without_room_for_results_lives_and_says_that_it_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = bodies.KEPT_FREE_BYTES
    monkeypatch.setattr(bodies.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with running(tmp_path / "server") as client:
        assert client.get("/readyz").status_code == 200
        free = 0
        told = refused(client.get("/readyz"), 503, "not-ready").detail
        assert told.endswith(
            f"/server is full (0 bytes are free, and {bodies.KEPT_FREE_BYTES} are needed): make room on it"
        )
        assert client.get("/healthz").status_code == 200


@contextmanager
def slow(client: httpx.Client, path: str, nbytes: int, **headers: str) -> Iterator[None]:
    """A request that the server waits for the body of."""
    with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as connection:
        more = [f"{name}: {value}" for name, value in headers.items()]
        told = (f"Content-Length: {nbytes}", "Expect: 100-continue", *more, "", "")
        head = (f"{path} HTTP/1.1", "Host: localhost", *told)
        connection.sendall("\r\n".join(head).encode())
        assert connection.recv(1 << 10).startswith(b"HTTP/1.1 100 ")
        yield


def test_documents_that_come_slowly_fill_no_disk_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is promised to them is not there for others, but for what agents bring."""
    free = bodies.KEPT_FREE_BYTES + 1000
    monkeypatch.setattr(bodies.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with running(tmp_path / "server", lost_after_s=60.0) as client:
        hand = Hand(client)
        document = spec_json(save_rows(tmp_path / "rows.npz"), parallelism={"workers": 1, "shards": 1})
        job = submit(client, document).json()["id"]
        with slow(client, "POST /v1/uploads", 720):
            for answer in (
                client.post("/v1/uploads", content=SMALL),
                client.put(f"/v1/jobs/{job}/values", content=SMALL),
            ):
                told = refused(answer, 507, "not-stored").detail
                assert "720 are promised to documents that are being brought, 720 of them to your project's" in told
            hand.end(hand.run())
        eventually(lambda: client.post("/v1/uploads", content=SMALL).status_code == 201, "it has room again")


def test_several_users_of_one_project_leave_room_on_the_disk_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = bodies.KEPT_FREE_BYTES + 1000
    monkeypatch.setattr(bodies.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    admin = "an-admin-by-the-settings"
    with running(tmp_path / "server", token=admin, lost_after_s=60.0) as client:

        def bearer(name: str, project: str) -> dict[str, str]:
            asked = {"name": name, "scope": "runner", "project": project}
            made = client.post("/v1/tokens", json=asked, headers={"Authorization": f"Bearer {admin}"})
            return {"Authorization": f"Bearer {made.json()['token']}"}

        ann, ben, dora = bearer("ann", "vision"), bearer("ben", "vision"), bearer("dora", "speech")
        with slow(client, "POST /v1/uploads", 720, **ann):
            told = refused(client.post("/v1/uploads", content=SMALL, headers=ben), 507, "not-stored").detail
            assert "720 of them to your project's" in told
            assert client.post("/v1/uploads", content=SMALL, headers=dora).status_code == 201


def test_bytes_of_uploads_that_are_not_finished_count(tmp_path: Path) -> None:
    with running(tmp_path / "server", uploads_bytes=1000) as client:
        with slow(client, "POST /v1/uploads", 720):
            full = refused(client.post("/v1/uploads", content=SMALL), 503, "too-many-uploads")
            assert "there are 720 bytes of uploads of project default already" in full.detail
            untold = client.post("/v1/uploads", content=iter([SMALL]))  # in chunks, without a length
            assert refused(untold, 503, "too-many-uploads").detail == full.detail
        eventually(lambda: client.post("/v1/uploads", content=SMALL).status_code == 201, "it has room again")
