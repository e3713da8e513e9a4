"""Text of an ONNX file: what a name may be, and what a message shows of one that is none."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from weft_graph.names import RESERVED_PREFIX
from weft_graph.onnx_form.errors import OnnxError

_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def text(value: object, what: str) -> str:
    """The value as text. Raises OnnxError where the file has bytes that are no UTF-8."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise OnnxError(f"{what} is no UTF-8: {error.reason} at byte {error.start}") from None
    raise OnnxError(f"{what} is a Python {type(value).__name__}, and must be text")


def legal(name: str, most: int) -> str:
    """A name that graphs may have: without control characters, of at most `most` characters, no converter's."""
    printable = _UNPRINTABLE.sub("_", name)
    if printable.startswith(RESERVED_PREFIX):
        printable = f"_{printable}"
    if len(printable) > most:
        printable = f"{printable[: most - 17]}.{sha256(printable.encode()).hexdigest()[:16]}"
    return printable


def trimmed(names: Iterable[str]) -> list[str]:
    """Values of a node without those left out at the end."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept
