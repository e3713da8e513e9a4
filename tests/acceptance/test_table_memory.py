"""A table of 2 GiB on real processes: it exists on no worker."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import weft
from acceptance_place import Place
from acceptance_processes import await_that, descendants
from weft.api.agent import AgentKind

ROWS, WIDTH, BAG, BATCH = 1 << 23, 64, 32, 256
TABLE_BYTES = ROWS * WIDTH * 4
MOST_BYTES = 500 << 20


def peak_bytes(pid: int) -> int:
    """The most memory that the process ever held."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_a_worker_never_holds_the_table(place: Place, client: weft.Client) -> None:
    draws = np.random.default_rng(0)
    ids = draws.integers(0, ROWS, (4 * BATCH, BAG))
    np.savez(place.folder / "bags.npz", ids=ids, label=draws.integers(0, 2, 4 * BATCH))
    bags = weft.nn.EmbeddingBag(ROWS, WIDTH)(weft.input("ids", ("batch", BAG), "int64"))
    loss = weft.nn.cross_entropy(weft.nn.Linear(WIDTH, 2)(bags), weft.input("label", ("batch",), "int64"))
    data = weft.numpy_data("bags.npz", evaluate=(3 * BATCH, 4 * BATCH))
    job = client.submit(loss, data=data, batch_size=BATCH, epochs=100_000, optimizer=weft.Adam(), workers=2, shards=2)
    assert TABLE_BYTES == 2 << 30
    await_that(lambda: "evaluate/loss" in job.refresh().metrics, "an evaluation")
    await_that(lambda: job.refresh().traffic.received_bytes > 0, "rows that have come")
    workers = [agent for agent in client.agents() if agent.kind is AgentKind.WORKER]
    runs = {agent.name: {agent.pid, *descendants(agent.pid)} for agent in workers}
    assert all(len(pids) >= 3 for pids in runs.values()), "a daemon, its forkserver and the job's own process"
    peaks = {name: max(map(peak_bytes, pids)) for name, pids in runs.items()}
    job.cancel()
    assert len(peaks) == 2
    assert max(peaks.values()) < MOST_BYTES, peaks
