"""A worker and a shard that a test plays call by call, over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
from safetensors.numpy import save

from server_running import eventually
from server_specs import CLASSES, FEATURES
from weft.api.problem import Problem

W = np.arange(FEATURES * CLASSES, dtype=np.float32).reshape(FEATURES, CLASSES)
B = np.ones(CLASSES, np.float32)


class Hand:
    """A worker and a shard, played call by call."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.seqs: dict[str, int] = {}
        shard = {"kind": "shard", "name": "shard-0", "pid": 1}
        self.shard = client.post("/v1/agents", json=shard).json()["id"]
        worker = {"kind": "worker", "name": "worker-0", "pid": 2}
        self.worker = client.post("/v1/agents", json=worker).json()["id"]

    def orders(self, agent: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.post(f"/v1/agents/{agent}/heartbeat", json={}).json()
        return found

    def allocation(self, agent: str) -> dict[str, Any]:
        eventually(lambda: self.orders(agent)["allocations"], f"{agent} is told")
        found: dict[str, Any] = self.orders(agent)["allocations"][0]
        return found

    def report(self, allocation: dict[str, Any], **facts: Any) -> None:
        seq = self.seqs[allocation["id"]] = self.seqs.get(allocation["id"], 0) + 1
        body = {"term": allocation["term"], "seq": seq, **facts}
        response = self.client.post(f"/v1/allocations/{allocation['id']}/reports", json=body)
        assert response.status_code == 204, response.text

    def start(self) -> dict[str, Any]:
        """The worker's allocation; it is ready."""
        self.report(self.allocation(self.shard), event="ready", endpoint="tcp://127.0.0.1:1")
        mine = self.allocation(self.worker)
        self.report(mine, event="ready")
        return mine

    def run(self) -> dict[str, Any]:
        mine = self.start()
        self.report(mine, event="running")
        return mine

    def end(self, mine: dict[str, Any], **arrays: np.ndarray) -> None:
        """Brings the final values, and is done."""
        query = {"term": mine["term"], "step": 6, "final": True}
        path = f"/v1/allocations/{mine['id']}/parameters"
        response = self.client.put(path, params=query, content=save({"w": W, "b": B, **arrays}))
        assert response.status_code == 204, response.text
        self.report(mine, event="done", step=6)

    def get(self, mine: dict[str, Any], what: str) -> httpx.Response:
        return self.client.get(f"/v1/allocations/{mine['id']}/{what}", params={"term": mine["term"]})


def refused(response: httpx.Response, status: int, code: str) -> Problem:
    found = Problem.model_validate(response.json())
    assert (response.status_code, found.code) == (status, code), response.text
    return found
