"""What waits in a shard's queues, by how urgent it is: in a few groups, for priorities are any numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PRIORITIES: Final = ("below 0", "0", "1-9", "10-99", "100-999", "1000 and above")
"""Groups of priorities, the most urgent first; the first layer of a network has 0."""

_BOUNDS: Final = (0, 1, 10, 100, 1000)


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Of one group of priorities: pieces of work that wait and their bytes, and slices that wait to be sent and
    theirs."""

    priority: str
    pieces: int = 0
    piece_bytes: int = 0
    slices: int = 0
    slice_bytes: int = 0


def group_of(priority: int) -> int:
    """The place of a priority's group in `PRIORITIES`."""
    return sum(priority >= bound for bound in _BOUNDS)


def depths(work: Iterable[tuple[int, int]], to_send: Iterable[tuple[int, int, int]]) -> tuple[QueueDepth, ...]:
    """All groups, from (priority, bytes) of pieces of work and (priority, slices, bytes) of what is to be sent."""
    found = [[0, 0, 0, 0] for _ in PRIORITIES]
    for priority, nbytes in work:
        group = found[group_of(priority)]
        group[0] += 1
        group[1] += nbytes
    for priority, slices, nbytes in to_send:
        group = found[group_of(priority)]
        group[2] += slices
        group[3] += nbytes
    return tuple(QueueDepth(name, *counts) for name, counts in zip(PRIORITIES, found, strict=True))
