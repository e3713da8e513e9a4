"""One run of what a client sends: adjacent slices of a lot, or chunks of a table's rows or ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft_kvstore.messages import Push


@dataclass(frozen=True, slots=True)
class Run:
    """Slices `first` to `first + count` of a lot, or as many of `chunks` chunks; `payload` has their bytes.

    `step` is the version of a value, `request` the number of the client's call.
    """

    cargo: int
    request: int
    lot: int
    step: int
    first: int
    count: int
    chunks: int
    payload: memoryview

    @property
    def stop(self) -> int:
        return self.first + self.count


def runs_of(push: Push, payload: memoryview) -> Iterator[Run]:
    """The runs of a frame; the codec has checked that its columns are of one length and `nbytes` adds up."""
    columns = (push.cargo, push.request, push.lot, push.step, push.first, push.count, push.chunks, push.nbytes)
    begin = 0
    for cargo, request, lot, step, first, count, chunks, nbytes in zip(*columns, strict=True):
        yield Run(cargo, request, lot, step, first, count, chunks, payload[begin : begin + nbytes])
        begin += nbytes
