"""A growing table: Zipf ids in batches of 65,536, half of them new, rows copied out; and what 50 million ids take.

Every case is a process of its own, so that its peak of memory is its own. docs/benchmarks.md says what figures mean.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from reporting import end_on_sigterm, machine_line, processor, stopped
from weft_graph.ir import Initializer
from weft_graph.program import Update
from weft_kernels.id_draws import rows_of_ids
from weft_kvstore import KVStore
from weft_kvstore.arrays import Array
from weft_kvstore.description.records import (
    GrowthDescription,
    InitializerDescription,
    KeyDescription,
    Merge,
    StoreDescription,
)
from weft_kvstore.process import tune_process
from weft_kvstore.rows.index import shard_of
from weft_kvstore.rows.storage import RowStorage
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings

DONE, FAILED = 0, 1
WIDTH: Final = 32
BATCH: Final = 65_536
BATCHES: Final = 60
WARM_UP: Final = 5
EXPONENT: Final = 1.1
IDS, SHARDS = 50_000_000, 2
BAR_ROWS, BAR_MEMORY = 5e6, 1.3
TIMEOUT_S: Final = 900

CONSTANT = Initializer("ConstantOfShape", {"value": 1.0})


def batches(count: int) -> Iterator[Array]:
    """Batches of distinct ids (BATCH) uint64, ascending as they are in the shard: half of them are new, the others are
    drawn by Zipf's law over those that are in, the earliest the most frequent. Drawn outside the clock."""
    generator = np.random.Generator(np.random.SFC64(1))
    known = generator.integers(0, 2**64, (count + 1) * BATCH // 2, dtype=np.uint64)
    yield known[: BATCH // 2]
    for number in range(1, count + 1):
        there = number * BATCH // 2
        drawn: Array = np.zeros(0, np.int64)
        while len(drawn) < BATCH // 2:
            more = generator.zipf(EXPONENT, 4 * BATCH) - 1
            drawn = np.unique(np.concatenate([drawn, more[more < there]]))
        old = generator.permutation(drawn)[: BATCH // 2]
        yield np.sort(np.concatenate([known[old], known[there : there + BATCH // 2]]))


def have_memory(count: int) -> None:
    """Takes what the case will need and gives it back: a virtual machine gets memory that it never had from its host
    only when it is first written, at ten times the cost, and that is not the table's."""
    np.ones((count + 2) * BATCH // 2 * (WIDTH * 4 + 64) + (64 << 20), np.uint8)


def in_rows(count: int) -> dict[str, Any]:
    """Rows found or made, and copied out."""
    tune_process()
    have_memory(count)
    table = RowStorage(WIDTH, np.dtype(np.float32), {}, growth=GrowthDescription(), salt=os.getpid())
    times = []
    for step, ids in enumerate(batches(count)):
        start = time.perf_counter()
        rows = table.arrays.read(None, table.find_or_add(ids, step, _first))
        times.append(time.perf_counter() - start)
        assert np.array_equal(rows, _first(ids)), "rows are not those of their ids"
    return {"times": times[1:]}


def over_wire(count: int) -> dict[str, Any]:
    """The same through all that a store does, over loopback: a push that SGD applies, and a pull of the new rows."""
    tune_process()
    have_memory(count)
    with ShardServer("tcp://127.0.0.1:0") as server:
        described = description((server.endpoint,))
        server.open(described, 0)
        gradient = np.ones((BATCH, WIDTH), np.float32)
        times = []
        with KVStore.connect(described, 0, settings=LinkSettings(same_host=False)) as store:
            for ids in batches(count):
                start = time.perf_counter()
                pushed = store.push_rows("table", ids, gradient[: len(ids)])
                rows = store.pull_rows("table", ids).result(60)
                pushed.result(60)
                times.append(time.perf_counter() - start)
                assert rows.max() <= 0.0, "every row has seen a step"
    return {"times": times[1:]}


def memory_of(shard: int, count: int) -> dict[str, Any]:
    """One of the shards of a table of so many ids: its peak over the bytes of its values, start of the process and
    all."""
    table = RowStorage(WIDTH, np.dtype(np.float32), {}, growth=GrowthDescription(), salt=os.getpid())
    times = []
    for low in range(0, count, BATCH):
        ids = np.arange(low, min(low + BATCH, count), dtype=np.uint64)
        ids = ids[shard_of(ids, SHARDS) == shard]
        start = time.perf_counter()
        table.find_or_add(ids, 0, _first)
        times.append(time.perf_counter() - start)
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    return {"times": times, "peak": peak, "values": table.count * WIDTH * 4, "rows": table.count}


def description(shards: tuple[str, ...]) -> StoreDescription:
    first = InitializerDescription(CONSTANT.op_type, dict(CONSTANT.attributes))
    growth = GrowthDescription()
    key = KeyDescription("table", "float32", (0, WIDTH), first, Update.RULE, 0, (0,), rows=True, growth=growth)
    return StoreDescription("benchmark", 1, 1, 1, shards, (key,), "sgd", {"lr": 1.0}, 1 << 17, Merge.SLOT)


def _first(ids: Array) -> Array:
    return rows_of_ids(CONSTANT, seed=1, key="table", ids=ids, width=WIDTH, dtype="float32")


Side = Callable[[int], dict[str, Any]]
CASES: Final[dict[str, tuple[str, Side]]] = {
    "grow-rows": ("in the shard", in_rows),
    "grow-wire-sgd": ("tcp", over_wire),
}
MEMORY: Final = "grow-memory"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.side is not None:
        print(json.dumps(_side(options.side, options.count)))
        return DONE
    console = Console(highlight=False)
    rows: list[dict[str, Any]] = []
    load = os.getloadavg()[0]
    chosen = options.case or [*CASES, MEMORY]
    failed = False
    for case in chosen:
        console.print(f"[dim]{case}[/dim]")
        try:
            rows.append(_memory_row(options.quick) if case == MEMORY else _speed_row(case, options.quick))
        except KeyboardInterrupt:
            return stopped(console)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            failed = True
            console.print(f"failed: {error}", style="red", markup=False, soft_wrap=True)
    console.print(_table(rows))
    conditions = {
        "machine": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(load, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "width": WIDTH,
        "batch": BATCH,
        "zipf": EXPONENT,
        "quick": options.quick,
    }
    console.print(machine_line(conditions))
    if options.json is not None:
        options.json.write_text(json.dumps({"conditions": conditions, "rows": rows}, indent=2) + "\n", encoding="utf-8")
    return FAILED if failed else DONE


def _side(name: str, count: int) -> dict[str, Any]:
    if name.startswith(MEMORY):
        return memory_of(int(name.rsplit("-", 1)[1]), count)
    return CASES[name][1](count)


def _speed_row(case: str, quick: bool) -> dict[str, Any]:
    found = _run(case, BATCHES // 4 if quick else BATCHES)
    median = statistics.median(found["times"][WARM_UP:])
    return _row(case, CASES[case][0], median, rows_per_s=round(BATCH / median), bar=BAR_ROWS)


def _memory_row(quick: bool) -> dict[str, Any]:
    sides = [_run(f"{MEMORY}-{shard}", IDS // 10 if quick else IDS) for shard in range(SHARDS)]
    peak, values = (sum(side[name] for side in sides) for name in ("peak", "values"))
    slowest = max(max(side["times"]) for side in sides)
    rate = sum(side["rows"] for side in sides) / sum(sum(side["times"]) for side in sides)
    told = {"memory_ratio": round(peak / values, 3), "peak_bytes": peak, "bar": BAR_MEMORY}
    return _row(MEMORY, "in the shard", slowest, rows_per_s=round(rate), **told)


def _row(case: str, transport: str, seconds: float, **more: Any) -> dict[str, Any]:
    nothing = {"peer_ms": None, "peer_name": None, "ratio": None, "wire_bytes": 0}
    return {"case": case, "transport": transport, "weft_ms": 1e3 * seconds, **nothing, **more}


def _run(side: str, count: int) -> dict[str, Any]:
    """What a process says of a side. Raises RuntimeError."""
    command = [sys.executable, __file__, "--side", side, "--count", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{side}: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    caption = "ms: the median of a batch; of memory, the longest batch of the whole growth"
    table = Table(box=box.SIMPLE_HEAD, caption=caption)
    for name in ("case", "where", "ms", "rows/s", "peak / values", "bar"):
        table.add_column(name, justify="left" if name in {"case", "where"} else "right", no_wrap=True)
    for row in rows:
        memory = f"{row['memory_ratio']:.3f}" if "memory_ratio" in row else "-"
        bar = f"{row['bar']:g}"
        table.add_row(row["case"], row["transport"], f"{row['weft_ms']:.1f}", f"{row['rows_per_s']:,}", memory, bar)
    return table


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A growing table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows and the conditions there")
    parser.add_argument("--quick", action="store_true", help="fewer batches and ids: a rough look")
    parser.add_argument("--case", action="append", choices=[*CASES, MEMORY], help="only this; repeatable")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=BATCHES, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main())
