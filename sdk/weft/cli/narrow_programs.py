"""The programs' text on a terminal that is narrower than its lines."""

from __future__ import annotations

import re
from textwrap import wrap


def narrow(text: str, width: int) -> str:
    """The text in lines of at most `width` characters: a longer one goes on below, set in.

    A table's line is cut instead, and ends with an ellipsis: folded cells read as cells of other columns.
    """
    lines: list[str] = []
    is_table = False
    for line in text.splitlines():
        is_table = line.lstrip().startswith("priority  ") or (is_table and bool(line.strip()))
        if len(line) <= width:
            lines.append(line)
        elif is_table:
            lines.append(f"{line[: width - 1]}…")
        else:
            lines += _folded(line, width)
    return "\n".join(lines)


def _folded(line: str, width: int) -> list[str]:
    """The line on as many as it takes, each but the first set in by four more; columns move together."""
    start = len(line) - len(line.lstrip())
    words = re.sub(r" {2,}", "  ", line.strip())
    indent = " " * min(start + 4, width // 2)
    return wrap(f"{' ' * start}{words}", width, subsequent_indent=indent, break_on_hyphens=False)
