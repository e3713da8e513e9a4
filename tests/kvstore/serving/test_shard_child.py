"""A shard of one job in a process of its own: it serves, fails and dies alone."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import WAIT_S, NamedClient, key_of, store_of
from weft.agent.children import Child, Forkserver, ProcessLimits
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.encryption import CurveKeys, new_curve_keys
from weft_kvstore.errors import StoreError
from weft_kvstore.serving.shard_process import ShardTask
from weft_kvstore.settings import LinkSettings
from weft_kvstore.snapshot_files import Snapshot, SnapshotFile

LINK = LinkSettings(silence_s=WAIT_S, request_timeout_s=WAIT_S)
ANY = "tcp://127.0.0.1:0"


@pytest.fixture(scope="module")
def forkserver() -> Iterator[Forkserver]:
    made = Forkserver("weft_kvstore.serving.shard_process")
    yield made
    made.close()


def described(job: str = "job", **changed: Any) -> StoreDescription:
    description = store_of([key_of("w", (300,), 1)], slots=1, shards=1, job=job)
    return msgspec.structs.replace(description, shards=("",), **changed)


def begun(
    forkserver: Forkserver,
    description: StoreDescription,
    bind: str = ANY,
    *,
    memory_bytes: int | None = None,
    advertise: str | None = None,
    curve: CurveKeys | None = None,
    clients: tuple[str, ...] = (),
    snapshot: Snapshot | None = None,
) -> tuple[Child, Iterator[dict[str, Any]]]:
    task = ShardTask("shard-0", description, 0, bind, advertise, curve=curve, curve_clients=clients, snapshot=snapshot)
    child = forkserver.fork(ProcessLimits(memory_bytes=memory_bytes))
    child.send(msgspec.to_builtins(task))
    return child, child.lines()


def connected(description: StoreDescription, endpoint: str) -> NamedClient:
    return NamedClient(msgspec.structs.replace(description, shards=(endpoint,)), 0, settings=LINK)


def ready(said: Iterator[dict[str, Any]]) -> str:
    """Where it listens."""
    report = next(said)["report"]
    assert report["event"] == "ready"
    return report["endpoint"]


def stop(child: Child, said: Iterator[dict[str, Any]]) -> None:
    stopping = threading.Thread(target=child.stop)
    stopping.start()
    assert {name for line in said for name in line} == {"statistics"}
    stopping.join(WAIT_S)
    assert child.ending == "its process ended with status 0"


def test_a_child_serves_its_job_tells_its_statistics_and_ends(forkserver: Forkserver) -> None:
    child, said = begun(forkserver, described())
    endpoint = ready(said)
    client = connected(described(), endpoint)
    client.push("w", 0, np.ones(300, np.float32)).result(WAIT_S)
    assert client.pull("w", 1).result(WAIT_S).shape == (300,)
    statistics = next(line["statistics"] for line in said if line["statistics"]["received_frames"])
    assert (statistics["jobs"], statistics["links"], statistics["job_links:job"]) == (1, 1, 1)
    client.close()
    stop(child, said)


IMPORTED_LATE = """
import socket, sys, threading
from weft_kvstore.serving import shard_process
shard_process.prepare()
known = set(sys.modules)
ours, its = socket.socketpair()
ours.sendall(sys.stdin.buffer.readline())
def talk():
    sys.stdout.buffer.write(ours.makefile("rb").readline())
    sys.stdout.buffer.flush()
    sys.stdin.buffer.read()
    ours.shutdown(socket.SHUT_WR)
threading.Thread(target=talk).start()
shard_process.main(its)
print(*sorted(set(sys.modules) - known))
"""


def test_a_child_has_all_modules_that_a_small_job_needs_from_its_fork_on() -> None:
    task = msgspec.json.encode(ShardTask("shard-0", described(), 0, ANY))
    command = [sys.executable, "-c", IMPORTED_LATE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(task + b"\n")
        process.stdin.flush()
        client = connected(described(), json.loads(process.stdout.readline())["report"]["endpoint"])
        client.push("w", 0, np.ones(300, np.float32)).result(WAIT_S)
        assert client.pull("w", 1).result(WAIT_S).shape == (300,)
        client.close()
        process.stdin.close()
        assert process.stdout.read().splitlines()[-1] == b""


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"rule": "magic"}, "rule: 'magic' is none of"), ({"slice_bytes": 1 << 30}, "$.store.slice_bytes")],
)
def test_what_cannot_be_opened_fails_by_its_reason(forkserver: Forkserver, changed: dict[str, Any], told: str) -> None:
    _, said = begun(forkserver, described(**changed))
    (failed,) = said
    assert failed["report"]["event"] == "failed"
    assert told in failed["report"]["reason"]


def test_a_child_writes_a_snapshot_tells_of_it_and_another_begins_with_it(
    forkserver: Forkserver, tmp_path: Path
) -> None:
    child, said = begun(forkserver, described())
    client = connected(described(), ready(said))

    def asked(step: int, folder: Path) -> dict[str, Any]:
        child.send({"snapshot": {"step": step, "folder": str(folder)}})
        report: dict[str, Any] = next(line for line in said if "report" in line)["report"]["snapshot"]
        return report

    assert "job.json is not there" in asked(0, tmp_path / "0-1")["error"]
    (tmp_path / "job.json").write_text("{}")
    client.push("w", 0, np.ones(300, np.float32)).result(WAIT_S)
    expected = client.pull("w", 1).result(WAIT_S).copy()
    missed = asked(0, tmp_path / "0-1")
    assert (missed["missed"], "is at version 1 already" in missed["error"]) == (True, True)
    done = asked(1, tmp_path / "1-1")
    client.close()
    stop(child, said)
    snapshot = Snapshot(1, str(tmp_path / "1-1"), (SnapshotFile(**done["file"]),))
    child, said = begun(forkserver, described(), snapshot=snapshot)
    client = connected(described(), ready(said))
    assert np.array_equal(client.pull("w", 1).result(WAIT_S), expected)
    client.close()
    stop(child, said)
    (tmp_path / "1-1" / snapshot.files[0].name).unlink()
    _, said = begun(forkserver, described(), snapshot=snapshot)
    (failed,) = said
    report = failed["report"]
    assert (report["event"], report["lost"], report["snapshot"]["step"]) == ("failed", True, 1)
    assert "shard-0.safetensors cannot be read" in report["snapshot"]["error"]


def test_of_a_range_of_ports_the_first_free_one_is_taken_and_none_is_told(forkserver: Forkserver) -> None:
    first = free_range()
    children = []
    for number in range(2):
        child, said = begun(forkserver, described(), f"tcp://127.0.0.1:{first}-{first + 1}", advertise="here")
        assert ready(said) == f"tcp://here:{first + number}"
        children.append((child, said))
    third, of_third = begun(forkserver, described(), f"tcp://127.0.0.1:{first}-{first + 1}")
    (failed,) = of_third
    assert "cannot bind" in failed["report"]["reason"]
    assert third.ending == "its process ended with status 0"
    for child, said in children:
        stop(child, said)


def test_nobody_but_the_jobs_own_workers_can_talk_to_a_child_with_keys(forkserver: Forkserver) -> None:
    shard, workers, stranger = (new_curve_keys() for _ in range(3))
    child, said = begun(forkserver, described(), curve=shard, clients=(workers.public,))
    here = described(curve_keys=(shard.public,), job="job")
    here = msgspec.structs.replace(here, shards=(ready(said),))
    with NamedClient(here, 0, settings=LINK, curve_keys=workers) as client:
        assert client.pull("w", 0).result(WAIT_S).shape == (300,)
        for keys in (stranger, None):
            with (
                NamedClient(here, 0, incarnation=9, settings=LINK, curve_keys=keys) as other,
                pytest.raises(StoreError, match="rejects a client with the CURVE key"),
            ):
                other.pull("w", 0).result(WAIT_S)
        plain = msgspec.structs.replace(here, curve_keys=())
        with NamedClient(plain, 0, incarnation=9, settings=LINK) as other, pytest.raises(StoreError):
            other.pull("w", 0).result(WAIT_S)
        assert client.pull("w", 0).result(WAIT_S).shape == (300,)
    stop(child, said)
    assert shard.secret not in child.last_logged


def free_range() -> int:
    """The first of two free ports, one behind the other."""
    for _ in range(100):
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise AssertionError("no two free ports")


def test_a_job_that_wants_more_memory_than_it_may_have_fails_alone(forkserver: Forkserver) -> None:
    other, of_other = begun(forkserver, described())
    client = connected(described(), ready(of_other))
    large = store_of([key_of("w", (1 << 28,), 1)], slots=1, shards=1, job="large")
    _, said = begun(forkserver, msgspec.structs.replace(large, shards=("",)), memory_bytes=1 << 29)
    (failed,) = said
    assert failed["report"]["reason"].startswith("out of memory: ")
    assert failed["report"]["reason"].endswith(f"; it may take {1 << 29} bytes here (--job-memory)")
    client.push("w", 0, np.ones(300, np.float32)).result(WAIT_S)
    assert client.pull("w", 1).result(WAIT_S).shape == (300,)
    client.close()
    stop(other, of_other)
