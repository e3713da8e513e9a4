"""What a snapshot of a large table costs the shard that has it, while rows are pushed: memory, time and bytes.

    python benchmarks/table_snapshots.py [--rows N] [--width N] [--touched N]

Every row is written first. Then steps push `--touched` random rows each: for some seconds without a
snapshot, while all rows are written to a file, and while those are written that have changed since. Memory is the
process's, which has the shard and the client that pushes; the share is of the largest that it had without a snapshot.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from weft_kvstore import Key, KVStore, describe
from weft_kvstore.process import resident_bytes, tune_process
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.snapshot import Captured, MissedError
from weft_kvstore.snapshot_files import SnapshotFile, write_file

AT_ONCE = 1 << 17
"""Rows of a push that fills the table."""
PLAIN_S = 5.0
MIB = 1 << 20


class Pushing:
    """Steps of random rows, and the most memory that the process has had meanwhile."""

    def __init__(self, client: KVStore, rows: int, width: int, touched: int, step: int) -> None:
        self.step = step
        self.most_bytes = 0
        self._client = client
        self._draw = np.random.default_rng(0)
        self._rows = rows
        self._touched = touched
        self._gradient = np.ones((touched, width), np.float32)

    def once(self) -> None:
        ids = np.unique(self._draw.integers(0, self._rows, self._touched))
        self._client.push_rows("table", ids, self._gradient[: len(ids)]).result()
        self._client.end_step().result()
        self.step += 1
        self.most_bytes = max(self.most_bytes, resident_bytes())


def snapshot(server: ShardServer, pushing: Pushing, folder: Path, since: int | None) -> tuple[SnapshotFile, int, float]:
    """Writes a snapshot of the next step but one while rows are pushed: its file, its step, and the seconds it took."""
    told: SimpleQueue[Captured | MissedError] = SimpleQueue()
    written: list[SnapshotFile] = []
    step = pushing.step + 2
    server.capture(step, told.put, since=since)

    def write() -> None:
        held = told.get()
        assert isinstance(held, Captured), held
        written.append(write_file(str(folder / str(step)), "shard-0.safetensors", held.arrays(), {}))
        held.release()

    begun = time.monotonic()
    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        pushing.once()
    return written[0], step, time.monotonic() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1 << 25)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--touched", type=int, default=8192, help="rows of each step")
    arguments = parser.parse_args()
    rows, width = arguments.rows, arguments.width
    tune_process()  # As a shard's process does.
    keys = {"table": Key((rows, width), rows=True, initializer=0.0)}
    described = describe(keys, shards=["tcp://127.0.0.1:0"], slots=1, rule="sgd", lr=0.1, barrier=False)
    link = LinkSettings(same_host=False)
    with tempfile.TemporaryDirectory() as folder, ShardServer(settings=link) as server:
        server.open(described, 0)
        with KVStore.connect(described, 0, settings=link, endpoints=[server.endpoint]) as client:
            steps = range(-(-rows // AT_ONCE))
            for step in steps:
                ids = np.arange(step * AT_ONCE, min((step + 1) * AT_ONCE, rows))
                client.push_rows("table", ids, np.ones((len(ids), width), np.float32)).result()
                client.end_step().result()
            pushing = Pushing(client, rows, width, arguments.touched, len(steps))
            end, first = time.monotonic() + PLAIN_S, pushing.step
            while time.monotonic() < end:
                pushing.once()
            plain, pace = pushing.most_bytes, (pushing.step - first) / PLAIN_S
            print(f"a table of {rows * width * 4 / MIB:,.0f} MiB; the process has {plain / MIB:,.0f} MiB", flush=True)
            print(f"{'':>12} {'file MiB':>9} {'seconds':>8} {'steps/s':>8} {'memory':>8}")
            print(f"{'none':>12} {'':>9} {PLAIN_S:>8.1f} {pace:>8.1f} {'':>8}", flush=True)
            since: int | None = None
            for what in ("all rows", "changed rows"):
                first = pushing.step
                file, since, seconds = snapshot(server, pushing, Path(folder), since)
                more, pace = pushing.most_bytes / plain - 1, (pushing.step - first) / seconds
                print(
                    f"{what:>12} {file.nbytes / MIB:>9,.0f} {seconds:>8.1f} {pace:>8.1f} {more:>+8.1%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
