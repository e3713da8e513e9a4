"""Which value had each byte of an arena last."""

from __future__ import annotations

from bisect import bisect_right


class LastOwners:
    """Pieces of memory, in order and without overlap, each with the value that was put there last."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: list[tuple[int, int, str]] = []

    def replace(self, start: int, end: int, owner: str) -> tuple[str, ...]:
        """Gives the bytes from `start` to `end` to `owner`; returns who had some of them, each once."""
        low = bisect_right(self._starts, start)
        if low and self._pieces[low - 1][1] > start:
            low -= 1
        high = low
        while high < len(self._pieces) and self._pieces[high][0] < end:
            high += 1
        before = self._pieces[low:high]
        pieces = [(start, end, owner)]
        if before and before[0][0] < start:
            pieces.insert(0, (before[0][0], start, before[0][2]))
        if before and before[-1][1] > end:
            pieces.append((end, before[-1][1], before[-1][2]))
        self._pieces[low:high] = pieces
        self._starts[low:high] = [piece[0] for piece in pieces]
        return tuple(dict.fromkeys(earlier for _, _, earlier in before))
