"""Lines of text for people: at most `WIDTH` characters wide, numbers with units, tables, folded sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import Final

from weft_graph.types import DType, TensorType

WIDTH: Final = 100
"""Characters of a line: half of a wide screen, and what a page of documentation holds."""

_NAME_CHARACTERS: Final = 40
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SHORT: Final = {
    DType.BOOL: "bool",
    DType.BFLOAT16: "bf16",
    **{dtype: dtype.value.replace("uint", "u").replace("int", "i") for dtype in DType if "int" in dtype.value},
    DType.FLOAT16: "f16",
    DType.FLOAT32: "f32",
    DType.FLOAT64: "f64",
}


def size_text(count: int) -> str:
    """Bytes as `600 B`, `12.5 KiB`, `3 MiB`."""
    number, unit = float(count), 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"


def type_text(type_: TensorType) -> str:
    """A type as papers and compilers write it: `f32[batch,3]`."""
    return f"{_SHORT.get(type_.dtype, type_.dtype.value)}[{','.join(map(str, type_.shape))}]"


def counted(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`, `3 keys`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(words: Iterable[str], most: int = 8) -> str:
    """`a`, `a and b`, `a, b and c`; of more than `most` the first ones and how many there are besides."""
    given = list(words)
    if len(given) > most:
        given = [*given[: most - 1], f"{len(given) - most + 1:,} more"]
    return " and ".join(filter(None, (", ".join(given[:-1]), given[-1]))) if given else ""


def paragraph(*sentences: str, indent: str = "") -> list[str]:
    """The sentences, one behind the other, folded."""
    return folded(" ".join(filter(None, sentences)), indent, indent)


def folded(text: str, indent: str = "", hanging: str = "") -> list[str]:
    """The text in lines, the first of which begins with `indent`, the others with `hanging`. Long words stay whole."""
    return wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], most: int = 36) -> Iterator[str]:
    """Columns as wide as their widest cell, two blanks between them and before the first; wider cells are cut."""
    cells = [[cut(cell, most) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        yield f"  {'  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))}".rstrip()


def name_text(name: str) -> str:
    """A name that a user gave, on one line: not too long, and nothing in it that a terminal would obey."""
    return cut(plain(name), _NAME_CHARACTERS)


def plain(text: str) -> str:
    """The text with a dot in the place of what is no letter, digit, sign or blank."""
    return "".join(letter if letter.isprintable() else "·" for letter in text)


def cut(text: str, most: int) -> str:
    """The text, with an ellipsis in the place of what is too long."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
