"""What a benchmark tells: the conditions it ran under, a table for the screen, a document for machines."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.filesize import decimal
from rich.table import Table

from figures import Figures, Row
from measuring import Plan
from store_cases import RATE, Case

Conditions = dict[str, object]


def conditions_of(plan: Plan, cases: Sequence[Case], *, quick: bool) -> Conditions:
    """The machine before the run, and how it is run."""
    return {
        "machine": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "rule": f"sgd, lr {RATE}, on the shards",
        "mode": "sync",
        "slice_bytes": plan.slice_bytes,
        "rounds": plan.rounds,
        "iterations": {case.name: case.iterations for case in cases},
        "late_s": {case.name: case.late_s for case in cases if case.late_s},
        "quick": quick,
    }


def table_of(rows: Sequence[Row]) -> Table:
    """Medians, and below them the lowest and highest median of a round. 80 columns hold it."""
    caption = "medians; below them, the lowest and highest median of a round\na ratio below 1: weft is faster"
    table = Table(caption=caption, box=box.SIMPLE_HEAD)
    for name in ("case", "peer"):
        table.add_column(name, no_wrap=True)
    for name in ("weft ms", "peer ms", "ratio", "wire"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        case = f"{row.case}\n[dim]over {row.transport}[/dim]"
        ratio = "missing" if row.ratio is None else f"{row.ratio:.2f}"
        theirs = "-" if row.peer is None else _text(row.peer)
        peer = row.peer_name.replace(", ", "\n")
        table.add_row(case, peer, _text(row.weft), theirs, ratio, decimal(row.wire_bytes, precision=0))
    return table


def machine_line(conditions: Mapping[str, object]) -> str:
    """The machine, and its load before the run and after: what any time has to be read beside."""
    return ", ".join(f"{name} {conditions[name]}" for name in ("machine", "cores", "load_before", "load_after"))


def write_json(path: Path, conditions: Mapping[str, object], rows: Sequence[Row]) -> None:
    """The document, whole or not at all."""
    text = json.dumps({"conditions": conditions, "rows": [row.as_json() for row in rows]}, indent=2)
    beside = path.with_name(path.name + ".part")
    beside.write_text(text + "\n", encoding="utf-8")
    beside.replace(path)


def _text(figures: Figures) -> str:
    low, high = map(digits, figures.spread_ms)
    return f"{digits(figures.median_ms)}\n{low}-{high}"


def digits(time_ms: float) -> str:
    """Three of them, or all before the point."""
    return f"{time_ms:.{2 if time_ms < 10 else 1 if time_ms < 100 else 0}f}" if time_ms >= 1 else f"{time_ms:.3f}"


def processor() -> str:
    """Its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
