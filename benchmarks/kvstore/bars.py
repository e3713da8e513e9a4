"""All that the store is held to, and whether it was met: `python bars.py FILE...`, documents of the benchmarks.

A directory stands for the documents in it; of two rows of one case the later counts. The exit code is 0 where all is
met, 1 where something is not, 2 where something was not measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from groups import BARE

KEYS_IN_FLIGHT: Final = 256
PREDICTION_OFF: Final = 0.2
"""Of the measured time: how far a prediction may be from it."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Figure:
    """What is looked at in a row: `of` gives None where the row has no such figure. `digits` follow the point.
    `bare`: what the bare exchange would have of it, by the row and by that of the bare exchange; None: it has none."""

    name: str
    of: Callable[[Mapping[str, Any]], float | None]
    at_least: bool = False
    digits: int = 2
    bare: Callable[[Mapping[str, Any], Mapping[str, Any]], float | None] = lambda _row, _bare: None

    def text(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


@dataclass(frozen=True, slots=True)
class Bar:
    """A case's figure and its limit, `peer`: how the name of the row's peer begins; any where it is empty."""

    case: str
    figure: Figure
    limit: float
    peer: str = ""

    def is_of(self, row: Mapping[str, Any]) -> bool:
        return row["case"] == self.case and (row.get("peer_name") or "").startswith(self.peer)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bar and what was measured, of the store and of the bare exchange in the same run; None where nothing was."""

    bar: Bar
    measured: float | None
    bare: float | None = None

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.bar.limit if self.bar.figure.at_least else self.measured <= self.bar.limit


def verdicts(rows: Rows, bars: Sequence[Bar]) -> list[Verdict]:
    """One for each bar, in order. Of several rows that a bar is of, the last counts."""
    bare = {row["case"]: row for row in rows if row.get("peer_name") == BARE}
    found = []
    for bar in bars:
        own = [row for row in rows if bar.is_of(row)]
        measured = bar.figure.of(own[-1]) if own else None
        beside = bare.get(bar.case)
        same_run = bool(own) and beside is not None and beside["weft_ms"] == own[-1]["weft_ms"]
        least = bar.figure.bare(own[-1], beside) if beside is not None and same_run else None
        found.append(Verdict(bar, measured, least))
    return found


def _field(name: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda row: row.get(name)


def _ratio(peer: str) -> Figure:
    return Figure(f"x {peer}", _field("ratio"), digits=3, bare=_bare_ratio)


def _bare_ratio(row: Mapping[str, Any], bare: Mapping[str, Any]) -> float | None:
    """Its time over the peer's."""
    return None if row["ratio"] is None else float(row["ratio"] / bare["ratio"])


def _us_a_key(row: Mapping[str, Any]) -> float:
    return float(1e3 * row["weft_ms"] / KEYS_IN_FLIGHT)


def _off(row: Mapping[str, Any]) -> float | None:
    """The row's peer is the prediction, its ratio the measured over the predicted."""
    return None if row["ratio"] is None else float(abs(1 / row["ratio"] - 1))


MXNET, DIST_SYNC, P3, PREDICTION = "MXNet", "mxnet-dist_sync", "mxnet-p3", "prediction"
"""How peers' names begin in the rows."""

OF_MXNET, OF_DIST_SYNC, OF_P3 = _ratio("MXNet"), _ratio("dist_sync"), _ratio("P3")
OF_BARE = Figure("x bare", _field("ratio"))
MILLISECONDS = Figure("ms", _field("weft_ms"))
US_A_KEY = Figure("us a key", _us_a_key, bare=lambda _row, bare: _us_a_key({"weft_ms": bare["peer_ms"]}))
ROWS_A_SECOND = Figure("rows/s", _field("rows_per_s"), at_least=True, digits=0)
OF_VALUES = Figure("x values", _field("memory_ratio"), digits=3)
OFF = Figure("off by", _off)

RATIOS: Final = {
    "resnet50-2s2w-tcp": (0.6, 1.12),
    "resnet50-2s2w-samehost": (0.25, 1.4),
    "resnet50-2s2w-inplace": (0.18, 2.0),
    "key-4KiB": (0.8, 2.6),
    "key-4KiB-pushpull": (0.6, 2.0),
    "key-1MiB": (0.5, 1.4),
    "key-16MiB": (0.45, 1.25),
    "key-64MiB": (0.35, 1.15),
    "flight-4KiB-1s1w": (0.05, 2.5),
    "flight-4KiB-2s2w": (0.08, 3.5),
    "rows-1s1w-tcp": (0.6, 1.35),
    "rows-2s2w-tcp": (0.8, 1.35),
    "rows-1s1w-samehost": (0.5, None),
}
"""Of MXNet's time, and of the bare exchange's, in the same run."""

A_KEY_US: Final = {"calls-4KiB-1s1w": 60.0}

P3_FIRST_MS: Final = {"1gbit-burst": 6.0, "1gbit-stagger": 20.0, "100mbit-burst": 12.0, "100mbit-stagger": 138.0}
"""When P3 has the first layer's new value back on a quiet machine with a link shaped by `tc`."""
OF_P3_FIRST: Final = {"100mbit-stagger": 0.3}
"""At most this of P3's time in the same run, where it is not 1."""


def _priority_bars() -> list[Bar]:
    """Through the proxy the ratios alone: it costs a processor's time, which is not the store's."""
    found = []
    for name, first_ms in P3_FIRST_MS.items():
        for shaped in ("", "-proxy"):
            first, last = f"{name}-first{shaped}", f"{name}-last{shaped}"
            found += [
                Bar(first, OF_DIST_SYNC, 0.05, DIST_SYNC),
                Bar(first, OF_P3, OF_P3_FIRST.get(name, 1.0), P3),
                *([] if shaped else [Bar(first, MILLISECONDS, first_ms)]),
                Bar(last, OF_P3, 1.05, P3),
            ]
    return found


BARS: Final = (
    *(Bar(case, OF_MXNET, limit, MXNET) for case, (limit, _) in RATIOS.items()),
    *(Bar(case, OF_BARE, limit, BARE) for case, (_, limit) in RATIOS.items() if limit is not None),
    *(Bar(case, US_A_KEY, limit, MXNET) for case, limit in A_KEY_US.items()),
    Bar("grow-rows", ROWS_A_SECOND, 5e6),
    Bar("grow-memory", OF_VALUES, 1.3),
    *_priority_bars(),
    Bar("busy-4KiB", MILLISECONDS, 0.5),
    *(Bar(f"resnet50-{name}-tcp", OFF, PREDICTION_OFF, PREDICTION) for name in ("1s2w", "2s1w", "2s2w")),
)


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
