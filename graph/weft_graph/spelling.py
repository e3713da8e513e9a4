"""What somebody may have meant by a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

MOST_COMPARED = 1000
"""Names that are compared: an answer's time does not grow with a graph."""


def did_you_mean(word: str, known: Iterable[str], also: Mapping[str, str] = MappingProxyType({})) -> str:
    """`; did you mean 'lr'?` where a known name is spelt almost so; empty where none is. `also` has other spellings.

    The one place that every room's messages get it from. A message that lists what is known
    otherwise writes `did_you_mean(word, known) or f"; there are {listed(known)}"`.
    """
    names = {name.lower(): name for name, _ in zip(known, range(MOST_COMPARED), strict=False)}
    close = difflib.get_close_matches(word.lower()[:256], names, n=1)
    if not close:  # `acc` for `accuracy`
        close = [name for name in names if len(word) > 1 and name.startswith(word.lower())][:1]
    if not close:  # of a short one many words are not far
        others = difflib.get_close_matches(
            word.lower()[:256], [name for name in also if len(name) > 4], n=1, cutoff=0.8
        )
        return f"; did you mean {also[others[0]]!r}?" if others else ""
    return f"; did you mean {names[close[0]]!r}?" if close else ""
