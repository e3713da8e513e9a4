"""What a benchmark tells: the conditions it ran under, a table for the screen, a document for machines."""

from __future__ import annotations

import json
import platform
import signal
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Round:
    """One side's round: `times_s` of its iterations, and the bytes of an iteration where the side counts them."""

    times_s: tuple[float, ...]
    wire_bytes: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Milliseconds: the median of all iterations, and the lowest and highest median of a round."""

    median_ms: float
    lowest_ms: float
    highest_ms: float

    @property
    def spread_ms(self) -> tuple[float, float]:
        return self.lowest_ms, self.highest_ms


@dataclass(frozen=True, slots=True)
class PeerRounds:
    """A peer's rounds under its name, or why there are none."""

    name: str
    rounds: Sequence[Round] = ()
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A case beside one peer. `ratio` is weft's time over the peer's; None where the peer is missing.

    `wire_bytes`: of one iteration, sent and received by all of weft's workers.
    """

    case: str
    transport: str
    weft: Figures
    peer: Figures | None
    peer_name: str
    ratio: float | None
    wire_bytes: int
    missing: str | None = None

    def as_json(self) -> dict[str, object]:
        return {
            "case": self.case,
            "transport": self.transport,
            "weft_ms": self.weft.median_ms,
            "weft_spread_ms": self.weft.spread_ms,
            "peer_ms": self.peer and self.peer.median_ms,
            "peer_spread_ms": self.peer and self.peer.spread_ms,
            "peer_name": self.peer_name,
            "ratio": self.ratio,
            "wire_bytes": self.wire_bytes,
            "missing": self.missing,
        }


def joined(words: Sequence[Mapping[str, Any]]) -> Round:
    """The round of all workers: their clocks are the machine's one monotonic clock."""
    spans = zip(*(word["spans"] for word in words), strict=True)
    times = tuple(max(end for _, end in each) - min(start for start, _ in each) for each in spans)
    wires = [word["wire"] for word in words]
    return Round(times, None if None in wires else sum(wires))


def figures_of(rounds: Sequence[Round]) -> Figures:
    """Of at least one round with at least one iteration."""
    medians = [1e3 * statistics.median(each.times_s) for each in rounds]
    pooled = 1e3 * statistics.median([time_s for each in rounds for time_s in each.times_s])
    return Figures(pooled, min(medians), max(medians))


def row_of(case: str, transport: str, weft: Sequence[Round], peer: PeerRounds) -> Row:
    own = figures_of(weft)
    theirs = figures_of(peer.rounds) if peer.missing is None else None
    ratio = None if theirs is None else own.median_ms / theirs.median_ms
    wire = round(statistics.median([each.wire_bytes for each in weft if each.wire_bytes is not None]))
    return Row(case, transport, own, theirs, peer.name, ratio, wire, peer.missing)


def better(peers: Sequence[PeerRounds]) -> PeerRounds:
    """The fastest of one peer's settings. Where one is missing nobody knows which that is, so the peer is missing."""
    for peer in peers:
        if peer.missing is not None:
            return peer
    return min(peers, key=lambda peer: figures_of(peer.rounds).median_ms)


class Screen(Protocol):
    def print(self, text: str, /) -> None: ...


def end_on_sigterm() -> None:
    """From now on the signal ends the main thread as an exit does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def stopped(screen: Screen) -> int:
    """Says that the user has stopped it; the exit code."""
    screen.print("stopped; no process is left")
    return 128 + signal.SIGINT


Telling = Callable[[str], None]
"""Called with what is done now: the case, or a part of the work, then a colon and how far that is."""


@contextmanager
def progress_told(total: int | None = None, *, console: Console | None = None) -> Iterator[Telling]:
    """A bar on a terminal, of `total` calls where that is known, which leaves nothing behind; else a line for each case
    begun, so that a pipe or a file has something to show."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console).tell
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda text: bar.update(task, advance=1, description=text)


class _Lines:
    """Says of each case once that it has begun."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun: set[str] = set()

    def tell(self, text: str) -> None:
        case = text.partition(":")[0]
        if case not in self._begun:
            self._begun.add(case)
            self._console.print(case, markup=False, highlight=False, soft_wrap=True)


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


def link_table(rows: Sequence[Row]) -> Table:
    """Medians in milliseconds, and below a peer's weft's time over it. 80 columns hold it."""
    peers = list(dict.fromkeys(row.peer_name for row in rows))
    caption = "medians in ms; below them, weft's time over the peer's: below 1, weft is earlier"
    table = Table(caption=caption, box=box.SIMPLE_HEAD)
    table.add_column("case", no_wrap=True)
    for name in ("weft", *peers):
        table.add_column(name.replace("mxnet-", "mxnet\n").replace("weft-", "weft\n"), justify="right", no_wrap=True)
    cases: dict[str, dict[str, Row]] = {}
    for row in rows:
        cases.setdefault(row.case, {})[row.peer_name] = row
    for case, found in cases.items():
        own = next(iter(found.values()))
        cells = [_cell(found[name]) if name in found else "" for name in peers]
        table.add_row(case, digits(own.weft.median_ms), *cells)
    return table


def _cell(row: Row) -> str:
    if row.peer is None or row.ratio is None:
        return "missing"
    return f"{digits(row.peer.median_ms)}\n{row.ratio:.{3 if row.ratio < 0.1 else 2}f}"
