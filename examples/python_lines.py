"""Lines of Python source, and the numbers that a table's rows are found by: data for `source_lines.py`.

The lines are those of the running Python's own library, so nothing is fetched and every machine has them. A class is a
module or package at the top of the library.
"""

from __future__ import annotations

import re
import sysconfig
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROWS = 1 << 20
"""Rows of the table that features are hashed into. Row 0 is padding."""
LENGTH = 48
"""Features of a line at most; a line has 35 on average."""
SHORTEST = 8
"""Characters of the shortest line: `else:` and its like say nothing of where they stand."""
FEWEST_LINES = 500
"""Lines that a class needs, which are in no other."""
FEWEST_CLASSES = 20
"""With fewer, it is not the whole library that was found."""
HELD_OUT = 10
"""One line in so many is for the test, chosen by its hash."""
GRAM = 4

LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
TOKEN = re.compile(r"[A-Za-z_]+|\d+|[^\sA-Za-z_\d]+")


class LibraryMissingError(FileNotFoundError):
    """This Python's library holds too little source."""


class Lines(NamedTuple):
    """Lines with the class of each, those for training first; `names` are the classes."""

    text: list[str]
    label: np.ndarray
    names: list[str]
    trained: int


def read_lines(root: Path | None = None, *, most: int | None = None, fewest_classes: int = FEWEST_CLASSES) -> Lines:
    """The lines that occur in one class only, whatever their indentation, of all classes that have enough of them.

    So no line is both trained on and tested. `root` is the library's folder, that of the running Python where left out;
    `most` bounds the lines of a class. Raises LibraryMissingError where there are too few classes.
    """
    root = Path(sysconfig.get_paths()["stdlib"]) if root is None else root
    own = {name: lines for name, lines in sorted(_distinct(root).items()) if len(lines) >= FEWEST_LINES}
    if len(own) < fewest_classes:
        raise LibraryMissingError(
            f"{root} has the source of {len(own)} modules of {FEWEST_LINES} lines or more, and {fewest_classes} are "
            "needed: this Python came without the source of its library. A whole one has it (on Debian and Ubuntu: "
            "apt install python3-full)"
        )
    trained: list[tuple[str, int]] = []
    held_out: list[tuple[str, int]] = []
    for label, lines in enumerate(own.values()):
        for line in lines[:most]:
            side = held_out if zlib.crc32(line.encode()) % HELD_OUT == 0 else trained
            side.append((line, label))
    text, labels = zip(*trained, *held_out, strict=True)
    return Lines(list(text), np.array(labels, np.int64), list(own), len(trained))


def table_rows(line: str) -> list[int]:
    """The rows of the table that stand for the line: its words, neighbouring words, and parts of words.

    Hashed by CRC-32, which is the same in every process, as Python's own hash is not.
    """
    words = TOKEN.findall(line)
    rows = [row for word in words for row in _word_rows(word)[:1]]
    rows += [_row(f"2 {first} {second}") for first, second in zip(["", *words], [*words, ""], strict=True)]
    rows += [row for word in words for row in _word_rows(word)[1:]]
    return list(dict.fromkeys(rows))[:LENGTH]


def padded(lines: Sequence[str]) -> np.ndarray:
    """The lines' rows (lines, LENGTH) int64, filled up with row 0."""
    filled = np.zeros((len(lines), LENGTH), np.int64)
    for place, line in enumerate(lines):
        rows = table_rows(line)
        filled[place, : len(rows)] = rows
    return filled


def _distinct(root: Path) -> dict[str, list[str]]:
    """By class the lines that no other class has, in alphabetical order."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in _sources(root):
        name = path.relative_to(root).parts[0].removesuffix(".py")
        text = path.read_text(encoding="utf-8", errors="replace")
        found[name].update(line for line in map(str.strip, text.splitlines()) if len(line) >= SHORTEST)
    count = Counter(line for lines in found.values() for line in lines)
    return {name: sorted(line for line in lines if count[line] == 1) for name, lines in found.items()}


def _sources(root: Path) -> Iterator[Path]:
    """The library's sources without its tests, without what was installed, and without what was made by a build."""
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        if not LEFT_OUT & set(parts) and not parts[0].startswith(("_sysconfigdata", "config-")):
            yield path


@cache
def _word_rows(word: str) -> tuple[int, ...]:
    """The row of the word, then those of its parts of four letters, its ends marked."""
    marked = f"<{word}>"
    parts = range(len(marked) - GRAM + 1) if len(word) >= GRAM and word.isidentifier() else ()
    return (_row(f"1 {word}"), *(_row(f"4 {marked[place : place + GRAM]}") for place in parts))


def _row(feature: str) -> int:
    return 1 + zlib.crc32(feature.encode()) % (ROWS - 1)
