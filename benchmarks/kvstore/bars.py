"""All that the store is held to, and whether it was met: `python bars.py FILE...`, documents of the benchmarks.

A directory stands for the documents in it; of two rows of one case the later counts. The exit code is 0 where all is
met, 1 where something is not, 2 where something was not measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from store_bars import BARS, Verdict, verdicts

MET, MISSED, UNMEASURED = 0, 1, 2


def run(arguments: Sequence[str] | None = None) -> int:
    """Tells, and returns the exit code."""
    options = _options(arguments)
    console = Console(highlight=False)
    try:
        documents = {path: _document(path) for path in _paths(options.files)}
    except (OSError, ValueError) as error:
        console.print(f"failed: {error}", style="red", markup=False, soft_wrap=True)
        return MISSED
    found = verdicts([row for document in documents.values() for row in document["rows"]], BARS)
    console.print(bar_table([one for one in found if one.met is not None] if options.measured else found))
    for path, document in documents.items():
        console.print(_told_of(path, document["conditions"]), markup=False, soft_wrap=True)
    met, missed, unmeasured = (sum(one.met is how for one in found) for how in (True, False, None))
    console.print(f"{met} met, {missed} not met, {unmeasured} not measured")
    return MISSED if missed else UNMEASURED if unmeasured else MET


def bar_table(found: Sequence[Verdict]) -> Table:
    """80 columns hold it. `bare`: what the bare exchange has of the same run, the least on its sockets."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("case", "figure"):
        table.add_column(name, no_wrap=True)
    for name in ("bare", "measured", "bar", "met"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found:
        figure = one.bar.figure
        bare, measured = ("-" if value is None else figure.text(value) for value in (one.bare, one.measured))
        limit = f"{'>=' if figure.at_least else '<='} {one.bar.limit:,.10g}"
        met = {True: "yes", False: "[red]no[/red]", None: "-"}[one.met]
        table.add_row(one.bar.case, figure.name, bare, measured, limit, met)
    return table


def _told_of(path: Path, conditions: Mapping[str, Any]) -> str:
    load = ", ".join(f"load {conditions.get(f'load_{when}', '?')} {when}" for when in ("before", "after"))
    quick = "; a quick run: too short to judge by" if conditions.get("quick") else ""
    return f"{path.name}: {load}{quick}"


def _paths(given: Sequence[Path]) -> list[Path]:
    return [each for path in given for each in (sorted(path.glob("*.json")) if path.is_dir() else [path])]


def _document(path: Path) -> dict[str, Any]:
    """Raises ValueError for what no benchmark wrote."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    rows = document.get("rows") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not isinstance(document.get("conditions"), dict):
        raise ValueError(f"{path}: no document of a benchmark: it has no conditions and rows")
    return {"conditions": document["conditions"], "rows": [row for row in rows if "case" in row]}


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What the store is held to, and whether it was met")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="written by --json, or a directory of them")
    parser.add_argument("--measured", action="store_true", help="show only what was measured")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run())
