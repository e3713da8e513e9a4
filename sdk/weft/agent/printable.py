"""Text of others on its way to a terminal, which takes control characters for commands."""

from __future__ import annotations

import re

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""C0 and C1 but for tabs and line ends, and what turns the order of letters around."""


def escaped(text: str) -> str:
    r"""The text with control characters as `\u001b`, which JSON reads too."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
