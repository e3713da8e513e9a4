"""The programs' text on a terminal that is too narrow for its tables: two lines a node, a line a key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from textwrap import wrap

NODES = ("#", "node", "operator", "reads", "writes")
KEYS = ("priority", "key", "type", "first value", "update")

GAP = re.compile(r" {2,}")


def narrow(text: str, width: int) -> str:
    """The text in lines of at most `width` cells; what is longer is cut, and ends with an ellipsis.

    A table is known by its heading, whose words stand where the columns begin.
    """
    lines: list[str] = []
    for is_blank, group in groupby(text.splitlines(), key=lambda line: not line.strip()):
        part = list(group)
        lines += part if is_blank else _narrow_part(part, width)
    return "\n".join(lines)


def _narrow_part(part: list[str], width: int) -> Iterator[str]:
    """What stands between two blank lines: some lines, and perhaps a table below them."""
    heading = next((place for place, line in enumerate(part) if _headings(line) in {NODES, KEYS}), len(part))
    for line in part[:heading]:
        yield from _folded(line, width)
    if heading == len(part):
        return
    rows = list(_cells(part[heading:]))
    narrowed = _nodes(rows[1:]) if tuple(rows[0]) == NODES else _keys(rows)
    for line in narrowed:
        yield line if len(line) <= width else f"{line[: width - 1]}…"


def _headings(line: str) -> tuple[str, ...]:
    return tuple(GAP.split(line.strip()))


def _cells(table: Sequence[str]) -> Iterator[list[str]]:
    """The cells of each line, the heading's first."""
    heading = table[0]
    starts = [match.end() for match in re.finditer(r"(?:^| ) +(?=\S)", heading)]
    for line in table:
        yield [line[start:stop].strip() for start, stop in zip(starts, [*starts[1:], len(line)], strict=True)]


def _nodes(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """`2  conv1 = Conv(...)`, and below it what is read and written."""
    for number, node, operator, reads, writes in rows:
        yield f"  {number:<4}{node} = {operator}"
        yield f"      {f'{reads} -> {writes}'.strip()}"


def _keys(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """All but the first values, which are wide and the graph's own."""
    left = [[priority, update, key, type_] for priority, key, type_, _, update in rows]
    widths = [max(map(len, column)) for column in zip(*left, strict=True)]
    for row in left:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _folded(line: str, width: int) -> list[str]:
    """The line on as many as it takes, set in below its second word where it begins as a list does."""
    if len(line) <= width:
        return [line]
    start = re.match(r"\s*\S+\s+", line)
    return wrap(line, width, subsequent_indent=" " * min(start.end() if start else 4, width // 2))
