"""Who may speak for an agent: it alone. Users and agents have tokens, each agent and allocation a credential."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from server_hands import refused
from server_running import DEADLINE_S, Actor, eventually, parameters, running, state, submit
from server_specs import FEATURES, save_rows, spec_json
from weft.api.agent import AgentKind
from weft.api.lifecycle import AllocationEvent
from weft_server.credentials import KEY_FILE

USERS, AGENTS = "a-token-of-all-users", "a-token-to-join-with"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def registered(client: httpx.Client, name: str) -> tuple[str, str]:
    """(id, credential) of an agent that nobody plays."""
    answer = client.post("/v1/agents", json={"kind": "worker", "name": name, "pid": 1}, headers=bearer(AGENTS)).json()
    return answer["id"], answer["token"]


def test_nobody_speaks_for_an_agent_but_itself(tmp_path: Path) -> None:
    with running(tmp_path / "server", token=USERS, agent_token=AGENTS, lost_after_s=DEADLINE_S) as client:
        mine, credential = registered(client, "worker-0")
        other, others = registered(client, "worker-1")
        beat = f"/v1/agents/{mine}/heartbeat"
        assert client.post(beat, json={}, headers=bearer(credential)).status_code == 200
        for token in (others, USERS, AGENTS):
            refused(client.post(beat, json={}, headers=bearer(token)), 403, "wrong-credential")
            if token != USERS:  # an admin's
                refused(client.delete(f"/v1/agents/{mine}", headers=bearer(token)), 403, "wrong-credential")
        for forged in (f"agents.{mine}.", f"agents.{mine}.{'0' * 64}", credential.replace(mine, other) + "0"):
            refused(client.post(beat, json={}, headers=bearer(forged)), 401, "unknown-credential")
        refused(client.post(beat, json={}), 401, "unauthorized")
        assert [agent["id"] for agent in client.get("/v1/agents", headers=bearer(USERS)).json()["agents"]] == [
            mine,
            other,
        ]
        assert client.delete(f"/v1/agents/{mine}", headers=bearer(credential)).status_code == 204


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/v1/agents"), ("GET", "/openapi.json")]
)
def test_agents_do_nothing_that_is_for_users_and_users_do_not_join(tmp_path: Path, method: str, path: str) -> None:
    with running(tmp_path / "server", token=USERS, agent_token=AGENTS) as client:
        _, credential = registered(client, "worker-0")
        for token in (credential, AGENTS):
            told = refused(client.request(method, path, headers=bearer(token)), 403, "wrong-credential")
            assert "wants a user's token with scope" in told.detail
        worker = {"kind": "worker", "name": "worker-9", "pid": 1}
        refused(client.post("/v1/agents", json=worker, headers=bearer(USERS)), 403, "wrong-credential")


def test_facts_and_values_of_an_allocation_come_from_who_holds_it(tmp_path: Path) -> None:
    """A job goes its whole way; a forged failure and a forged upload go none."""
    document: dict[str, Any] = spec_json(save_rows(tmp_path / "rows.npz"))
    with running(tmp_path / "server", token=USERS, agent_token=AGENTS, lost_after_s=DEADLINE_S) as client:
        _, stranger = registered(client, "worker-9")
        client.headers.update(bearer(USERS))
        actors = [Actor(client, AgentKind.SHARD, "shard-0", token=AGENTS)] + [
            Actor(client, AgentKind.WORKER, f"worker-{n}", token=AGENTS, stop_at=AllocationEvent.RUNNING)
            for n in range(2)
        ]
        try:
            eventually(lambda: len(client.get("/v1/agents").json()["agents"]) == 4, "all have registered")
            job = submit(client, document).json()["id"]
            eventually(lambda: state(client, job) != "pending", "it is placed")
            held = [each for actor in actors for each in (actor.orders[-1].allocations if actor.orders else [])]
            for allocation in held:
                assert allocation.token is not None
                others = [each.token for each in held if each is not allocation]
                for token in (stranger, USERS, AGENTS, *filter(None, others)):
                    report = {"term": allocation.term, "seq": 999, "event": "failed", "reason": "forged"}
                    at = f"/v1/allocations/{allocation.id}"
                    forged = client.post(f"{at}/reports", json=report, headers=bearer(token))
                    refused(forged, 403, "wrong-credential")
                    brought = {"term": allocation.term, "step": 6, "final": "true"}
                    put = client.put(f"{at}/parameters", params=brought, content=parameters(9), headers=bearer(token))
                    refused(put, 403, "wrong-credential")
                    refused(
                        client.get(f"{at}/given", params={"term": 1}, headers=bearer(token)), 403, "wrong-credential"
                    )
            assert held
            assert state(client, job) not in {"failed", "recovering"}
        finally:
            for actor in actors:
                actor.end()


def test_credentials_outlive_the_server_and_an_agent_of_a_lost_key_registers_anew(tmp_path: Path) -> None:
    directory = tmp_path / "server"
    with running(directory, token=USERS, agent_token=AGENTS, lost_after_s=DEADLINE_S) as client:
        agent, credential = registered(client, "worker-0")
        assert (directory / KEY_FILE).stat().st_mode & 0o777 == 0o600
        assert credential.encode() not in (directory / "weft.db").read_bytes()
    with running(directory, token=USERS, agent_token=AGENTS, lost_after_s=DEADLINE_S) as client:
        beat = client.post(f"/v1/agents/{agent}/heartbeat", json={}, headers=bearer(credential))
        assert beat.status_code == 200
    (directory / KEY_FILE).unlink()
    with running(directory, token=USERS, agent_token=AGENTS, lost_after_s=DEADLINE_S) as client:
        beat = client.post(f"/v1/agents/{agent}/heartbeat", json={}, headers=bearer(credential))
        refused(beat, 401, "unknown-credential")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_rows(tmp_path_factory.mktemp("cluster") / "rows.npz")


@pytest.fixture(scope="module")
def cluster(rows: Path) -> Iterator[httpx.Client]:
    """A server that asks for tokens, and a shard and a worker that have theirs, all processes; a job's process may take
    256 MiB of memory on either. Data is below `rows`' folder."""
    directory = rows.parent
    secrets = {"WEFT_SERVER_TOKEN": USERS, "WEFT_SERVER_AGENT_TOKEN": AGENTS, "WEFT_SERVER_ENCRYPT_LINKS": "true"}
    secrets["WEFT_SERVER_MACHINE_BYTES"] = str(1 << 50)  # as of machines of their own: only what agents say counts
    with ExitStack() as stack:

        def started(module: str, *arguments: str, **environment: str) -> None:
            command = [sys.executable, "-m", module, *arguments]
            process = stack.enter_context(subprocess.Popen(command, env={**os.environ, **environment}, cwd=directory))
            stack.callback(process.kill)

        started("weft_server", "--port", "0", "--directory", str(directory / "server"), **secrets)
        file = directory / "server" / "server.json"
        eventually(file.exists, "the server listens")
        url = str(json.loads(file.read_text())["url"])
        for kind, module in (("SHARD", "weft_kvstore"), ("WORKER", "weft_worker")):
            given = {f"WEFT_{kind}_TOKEN": AGENTS, f"WEFT_{kind}_JOB_MEMORY": "256MiB"}
            started(module, "--server", url, "--name", f"{kind.lower()}-0", **given)
        with httpx.Client(base_url=url, headers=bearer(USERS), timeout=DEADLINE_S) as client:
            yield client


def trains(client: httpx.Client, rows: Path) -> None:
    job = submit(client, spec_json(rows, parallelism={"workers": 1, "shards": 1})).json()["id"]
    eventually(lambda: state(client, job) in {"succeeded", "failed"}, "the job ends")
    assert client.get(f"/v1/jobs/{job}").json()["reason"] is None
    assert client.get(f"/v1/jobs/{job}/values").status_code == 200


def test_processes_that_have_credentials_train_a_job_whatever_others_forge(cluster: httpx.Client, rows: Path) -> None:
    """The worker's child brings the final values by itself, with its allocation's credential."""
    document = spec_json(rows, parallelism={"workers": 1, "shards": 1}, run={"steps": 1_000_000})
    job = submit(cluster, document).json()["id"]
    eventually(lambda: state(cluster, job) == "running", "the job runs")
    agents = cluster.get("/v1/agents").json()["agents"]
    _, stranger = registered(cluster, "worker-9")
    failed = {"term": 1, "seq": 999_999, "event": "failed", "reason": "forged"}
    brought = {"term": 1, "step": 1_000_000, "final": "true"}
    for token in (USERS, AGENTS, stranger):
        for kind in ("worker", "shard"):
            at, who = f"/v1/allocations/{job}-1-{kind}-0", bearer(token)
            refused(cluster.post(f"{at}/reports", json=failed, headers=who), 403, "wrong-credential")
            put = cluster.put(f"{at}/parameters", params=brought, content=parameters(666), headers=who)
            refused(put, 403, "wrong-credential")
        for agent in agents:
            beat = cluster.post(f"/v1/agents/{agent['id']}/heartbeat", json={}, headers=bearer(token))
            refused(beat, 403, "wrong-credential")
            if token != USERS:  # an admin's
                ended = cluster.delete(f"/v1/agents/{agent['id']}", headers=bearer(token))
                refused(ended, 403, "wrong-credential")
    cluster.delete(f"/v1/agents/{stranger.split('.')[1]}", headers=bearer(stranger))
    assert state(cluster, job) == "running"
    cluster.post(f"/v1/jobs/{job}/cancel")
    trains(cluster, rows)


def test_a_job_that_no_agent_has_the_memory_for_is_refused_and_others_train(cluster: httpx.Client, rows: Path) -> None:
    classes = 20_000_000
    document = spec_json(rows, parallelism={"workers": 1, "shards": 1})
    weights, bias = document["graph"]["parameters"]
    weights["shape"], bias["shape"] = [FEATURES, classes], [classes]
    eventually(lambda: len(cluster.get("/v1/agents").json()["agents"]) >= 2, "both agents are there")
    answer = cluster.post("/v1/jobs", json=document)
    refused(answer, 422, "job-refused")
    told = {each["pointer"]: each["detail"] for each in answer.json()["errors"]}
    assert told.keys() >= {"/parallelism/shards", "/data/batch_size"}
    assert "of memory, and no shard of the cluster" in told["/parallelism/shards"]
    trains(cluster, rows)
