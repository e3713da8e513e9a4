"""Draws docs/priority-first.svg and docs/priority-last.svg from docs/priority.json.

Run `python benchmarks/kvstore/priority_trade.py --json docs/priority.json` and then `python docs/draw_priority.py`;
a test compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
DATA = DOCS / "priority.json"
BENCHMARKS = DOCS.parent / "benchmarks" / "kvstore"

KIB = 1024
WHAT = {"first": "first layer back, ms", "last": "last layer back, ms"}


def drawings() -> dict[Path, str]:
    """Each drawing: a line for each slice size over the credit, and a mark where weft's own credit lies in time."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import svg_plot
    finally:
        sys.path.remove(str(BENCHMARKS))
    document = json.loads(DATA.read_text(encoding="utf-8"))
    found = {}
    for mark, name in WHAT.items():
        by_slice: dict[int, list[dict[str, Any]]] = {}
        for cell in document["cells"]:
            by_slice.setdefault(cell["slice_bytes"], []).append(cell)
        lines = []
        for size, cells in by_slice.items():
            points = [(cell["credit_bytes"] / KIB, cell[mark]) for cell in cells if cell["credit_bytes"] is not None]
            # What weft finds lies on no place of the credit's axis: it stands at the right end.
            edge = 2 * max(x for x, _ in points)
            own = [(edge, cell[mark]) for cell in cells if cell["credit_bytes"] is None]
            lines.append(svg_plot.Line(f"{size // KIB} KiB", points, own))
        values = [y for line in lines for _, y in (*line.points, *line.marks)]
        ticks = [x for x, _ in lines[0].points]
        up = svg_plot.Axis(name, _ticks(min(values), max(values)))
        title = f"{name} by slice size (at the right edge: weft's own credit)"
        found[DOCS / f"priority-{mark}.svg"] = svg_plot.plot(title, svg_plot.Axis("credit, KiB", ticks), up, lines)
    return found


def _ticks(low: float, high: float) -> list[float]:
    steps = [digit * 10.0**power for power in range(-1, 5) for digit in (1, 2, 5)]
    return [step for step in steps if low / 2 < step < high * 2]


if __name__ == "__main__":
    for path, text in drawings().items():
        path.write_text(text, encoding="utf-8")
