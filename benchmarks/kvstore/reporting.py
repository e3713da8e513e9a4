"""What a benchmark tells: the conditions it ran under, a table for the screen, a document for machines."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.filesize import decimal
from rich.table import Table

from figures import Figures, Row
from measuring import Plan
from store_cases import RATE, Case

Conditions = dict[str, object]


def conditions_of(plan: Plan, cases: Sequence[Case], *, quick: bool) -> Conditions:
    """The machine before the run, and how it is run."""
    return {
        "machine": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "rule": f"sgd, rate {RATE}, on the shards",
        "mode": "sync",
        "slice_bytes": plan.slice_bytes,
        "rounds": plan.rounds,
        "iterations": {case.name: case.iterations for case in cases},
        "quick": quick,
    }


def table_of(rows: Sequence[Row]) -> Table:
    """Medians, and below them the lowest and highest median of a round. 80 columns hold it."""
    table = Table(caption="medians, lowest and highest median of a round; below 1, weft is faster")
    for name in ("case", "over", "peer"):
        table.add_column(name)
    for name in ("weft ms", "peer ms", "ratio", "wire"):
        table.add_column(name, justify="right")
    for row in rows:
        ratio = "missing" if row.ratio is None else f"{row.ratio:.2f}"
        theirs = "-" if row.peer is None else _text(row.peer)
        peer = row.peer_name.replace(", ", "\n")
        table.add_row(row.case, row.transport, peer, _text(row.weft), theirs, ratio, decimal(row.wire_bytes))
    return table


def write_json(path: Path, conditions: Mapping[str, object], rows: Sequence[Row]) -> None:
    """The document, whole or not at all."""
    text = json.dumps({"conditions": conditions, "rows": [row.as_json() for row in rows]}, indent=2)
    beside = path.with_name(path.name + ".part")
    beside.write_text(text + "\n", encoding="utf-8")
    beside.replace(path)


def _text(figures: Figures) -> str:
    digits = 1 if figures.median_ms >= 10 else 3
    low, high = figures.spread_ms
    return f"{figures.median_ms:.{digits}f}\n{low:.{digits}f}-{high:.{digits}f}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
