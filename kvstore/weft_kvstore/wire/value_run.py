"""One run of what a shard answers: adjacent slices of a lot, or chunks of a table's rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

from weft_kvstore.wire.messages import Values


class ValueRun(NamedTuple):
    """Slices, or chunks, `first` to `first + count` of a lot at a version: of the pull's array number `array`.

    `payload` has their bytes, encoded where they are `compressed`; None where they are in the places of their keys.
    """

    array: int
    lot: int
    version: int
    first: int
    count: int  # type: ignore[assignment]  # nobody asks a tuple's `count` of it
    payload: memoryview | None
    compressed: bool = False

    @property
    def stop(self) -> int:
        return self.first + self.count


def value_runs(values: Values, payload: memoryview) -> Iterator[tuple[int, ValueRun]]:
    """The runs of a frame, each with the request that it answers; the codec has checked that its columns are of one
    length and `nbytes` adds up."""
    columns = (values.request, values.array, values.lot, values.version, values.first, values.count, values.nbytes)
    places = values.place or repeat(0, len(values.nbytes))
    begin = 0
    for request, array, lot, version, first, count, nbytes, compressed, place in zip(
        *columns, values.compressed, places, strict=True
    ):
        if place:
            yield request, ValueRun(array, lot, version, first, count, None)
            continue
        stop = begin + nbytes
        yield request, ValueRun(array, lot, version, first, count, payload[begin:stop], bool(compressed))
        begin = stop
