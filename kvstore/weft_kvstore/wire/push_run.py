"""One run of what a client sends: adjacent slices of a lot, or chunks of a table's rows or ids."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

from weft_kvstore.arrays.array import Array
from weft_kvstore.wire.messages import Push


class Run(NamedTuple):
    """Slices `first` to `first + count` of a lot, or as many of `chunks` chunks; `payload` has their bytes.

    `step` is the version of a value, `request` the number of the client's call. Where the bytes lie in the client's
    `arena`, which is read-only, they may change at any time; with `place` 1 they are in the places of their keys.
    """

    cargo: int
    request: int
    lot: int
    step: int
    first: int
    count: int  # type: ignore[assignment]  # nobody asks a tuple's `count` of it
    chunks: int
    payload: memoryview
    nbytes: int = 0
    place: int = 0
    arena: Array | None = None

    @property
    def stop(self) -> int:
        return self.first + self.count


def runs_of(push: Push, payload: memoryview, arena: Array | None = None) -> Iterator[Run]:
    """The runs of a frame; the codec has checked that its columns are of one length and `nbytes` adds up. The payload
    is in the `arena` where there is one."""
    columns = (push.cargo, push.request, push.lot, push.step, push.first, push.count, push.chunks, push.nbytes)
    places = push.place or repeat(0, len(push.nbytes))
    begin = 0
    for cargo, request, lot, step, first, count, chunks, nbytes, place in zip(*columns, places, strict=True):
        stop = begin if place else begin + nbytes
        yield Run(cargo, request, lot, step, first, count, chunks, payload[begin:stop], nbytes, place, arena)
        begin = stop
