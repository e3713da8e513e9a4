"""The bytes of a run over the arrays of some keys, without a look at each array before it is sent. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.buffers import Buffer
from weft_kvstore.operations.plan_run import PlanRun
from weft_kvstore.wire.out_run import OneBuffer, Source


class JoinedArrays:
    """Parts one behind the other: C-contiguous arrays, or views of some of their bytes. Part i has the run's bytes
    `starts[i]` to `starts[i + 1]`."""

    __slots__ = ("_parts", "_starts")

    def __init__(self, parts: list[Any], starts: Sequence[int]) -> None:
        self._parts = parts
        self._starts = starts

    def cut(self, start: int, stop: int) -> Sequence[Buffer]:
        first = bisect_right(self._starts, start) - 1
        last = bisect_left(self._starts, stop) - 1
        if first >= last:
            return (self._some(first, start, stop),)
        found = self._parts[first : last + 1]
        if start > self._starts[first]:
            found[0] = self._some(first, start, self._starts[first + 1])
        if stop < self._starts[last + 1]:
            found[-1] = self._some(last, self._starts[last], stop)
        return found

    def _some(self, number: int, start: int, stop: int) -> memoryview:
        begin = self._starts[number]
        return memoryview(self._parts[number]).cast("B")[start - begin : stop - begin]


def source_of(run: PlanRun, arrays: Sequence[Array]) -> Source:
    """What a run has of the arrays of a call, which are in the order of its keys."""
    if len(run.parts) == 1:
        (part,) = run.parts
        flat = memoryview(arrays[part.position]).cast("B")  # type: ignore[arg-type]  # mypy does not know arrays as buffers
        return OneBuffer(flat if part.whole else flat[part.start : part.stop])
    parts: list[Any] = list(run.pick(arrays))
    for number in run.partial:
        part = run.parts[number]
        parts[number] = memoryview(parts[number]).cast("B")[part.start : part.stop]
    return JoinedArrays(parts, run.starts)
