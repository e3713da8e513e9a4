"""The processes of a case's bare side, beside which a store's own share of a time is seen."""

from __future__ import annotations

import os
import sys

import numpy as np

from groups import HERE, Group, free_port
from store_cases import FLOAT_BYTES, Case

BARE = "bare pyzmq"
"""The peer's name in a row."""


def has_bare(case: Case) -> bool:
    """Whether there is a bare side for it: not for rows through shared memory or drawn by Zipf's law, and for nothing
    that is compressed, late or encrypted."""
    rows_elsewhere = case.rows and (case.transport != "tcp" or case.zipf)
    return not (rows_elsewhere or case.compression or case.late_s or case.curve)


def start_bare(group: Group) -> None:
    """Starts the bare side's shards and workers."""
    case, memory = group.case, "-"
    if case.transport != "tcp":
        memory = _memory(group)
    ports = [str(free_port()) for _ in range(case.servers)]
    for shard, port in enumerate(ports):
        command = [sys.executable, str(HERE / "bare_shard.py"), port, case.to_json(), memory]
        group.serve(f"shard {shard}", command, {})
    for slot in range(case.workers):
        command = [sys.executable, str(HERE / "bare_side.py"), ",".join(ports), str(slot), case.to_json(), memory]
        group.work(f"worker {slot}", command, {})


def _memory(group: Group) -> str:
    """A file of ones that lies in memory, as long as the group is there; its path."""
    case = group.case
    file = os.memfd_create("weft-benchmark")
    group.hold(file)
    os.truncate(file, (case.workers + 1) * case.payload_bytes)
    path = f"/proc/{os.getpid()}/fd/{file}"
    np.memmap(path, np.float32, "r+", shape=((case.workers + 1) * (case.payload_bytes // FLOAT_BYTES),))[:] = 1
    return path
