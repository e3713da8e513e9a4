"""The table of the cases on slow links: a line for each case, its peers side by side."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from figures import Row
from reporting import digits


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
