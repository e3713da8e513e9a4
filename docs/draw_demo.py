"""Draws docs/demo.svg: runs the demo in a terminal of its own and keeps what its screen shows at the end.

    pip install pyte && python docs/draw_demo.py

The terminal is emulated by pyte, the drawing is rich's, so that the picture is what a user sees and nothing else.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from itertools import groupby
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

DOCS = Path(__file__).parent
COLUMNS, LINES = 80, 64
COMMAND = [sys.executable, str(DOCS.parent / "examples" / "demo.py")]


def run() -> pyte.Screen:
    """The screen after the demo has ended. Raises CalledProcessError if it failed."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    with subprocess.Popen(COMMAND, stdin=slave, stdout=slave, stderr=slave, env=environment) as demo:
        os.close(slave)
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # the terminal's other side is closed: the demo has ended
                break
            stream.feed(chunk)
    os.close(master)
    if demo.returncode:
        raise subprocess.CalledProcessError(demo.returncode, COMMAND)
    return screen


def line(screen: pyte.Screen, row: int) -> Text:
    """One row of the screen, in its colours."""
    text = Text()
    cells = [screen.buffer[row][column] for column in range(COLUMNS)]
    for (color, bold, italic), run in groupby(cells, key=lambda cell: (cell.fg, cell.bold, cell.italics)):
        text.append("".join(cell.data for cell in run), Style(color=_color(color), bold=bold, italic=italic))
    text.rstrip()
    return text


def _color(name: str) -> str | None:
    if name == "default":
        return None
    return (
        f"#{name}"
        if len(name) == 6 and all(c in "0123456789abcdef" for c in name)
        else name.replace("bright", "bright_")
    )


def main() -> None:
    screen = run()
    rows = [line(screen, row) for row in range(LINES)]
    while rows and not rows[-1].plain.strip():
        rows.pop()
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115 - it lives as long as we
    console.print(Text("$ make demo", style="bold"))
    for row in rows:
        console.print(row)
    drawn = console.export_svg(title="weft")
    # Fonts of the reader's own, none fetched from elsewhere.
    (DOCS / "demo.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))


if __name__ == "__main__":
    main()
