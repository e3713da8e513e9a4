"""Slices of a lot at the gate of their shard: what is merged of a step is measured, and goes on as agreed on. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from weft_graph.program import Update
from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.exact_sum import exact_sum
from weft_kvstore.arrays.ranges import Range, ranges_where
from weft_kvstore.arrays.shelf import Laid
from weft_kvstore.lot.spec import LotSpec
from weft_kvstore.lot.sums import LotSums
from weft_kvstore.merging.step_gate import StepGate

_NEVER: Final = -1


class LotGate:
    """Invariant: `_told` (slices) is the last step that the gate was told of, and each is told once. `sums` are of the
    slices, which begin at `bounds` (elements)."""

    __slots__ = ("_bounds", "_gate", "_is_summed", "_sums", "_told", "_unscaled")

    def __init__(self, gate: StepGate, spec: LotSpec, sums: LotSums, bounds: Array) -> None:
        self._gate = gate
        self._is_summed = spec.update is not Update.MEAN
        self._unscaled = spec.unscaled
        self._sums = sums
        self._bounds = bounds
        self._told = np.full(len(spec.part), _NEVER, np.int64)

    def passes(self, step: int, first: int, stop: int) -> bool:
        """Whether the slots have agreed on a step: the sums of its slices are clipped then, or dropped where the step
        is skipped. The first time what they amount to is measured."""
        for low, high in ranges_where(self._told[first:stop] != step, first):
            squares = self._measured(low, high) if self._is_summed else 0
            self._told[low:high] = step
            self._gate.hold(step, squares, high - low)
        verdict = self._gate.verdict(step)
        if verdict is None:
            return False
        if verdict.factor is None:
            self._sums.take(first, stop)
        elif self._is_summed and verdict.factor != 1.0:
            _multiply(self._sums.look(first, stop), verdict.factor)
        return True

    def _measured(self, first: int, stop: int) -> int | None:
        """The exact sum of the slices' sums of squares, each in float64; None where that is not finite. What was
        multiplied by the loss scale is divided by it."""
        sums = self._sums.look(first, stop)
        if self._gate.scale != 1.0 and not self._unscaled:
            _multiply(sums, 1.0 / self._gate.scale)
        found: list[Array] = []
        for laid in sums:
            assert laid.elements is not None
            for low, high in self._slices(laid):
                found.append(np.square(laid.elements[low:high], dtype=np.float64).sum(keepdims=True))
        return exact_sum(np.concatenate(found)) if found else 0

    def _slices(self, laid: Laid) -> Iterator[Range]:
        """Where its slices begin and end among its elements."""
        edges = (self._bounds[laid.first : laid.stop + 1] - self._bounds[laid.first]).tolist()
        return pairwise(edges)


def _multiply(sums: list[Laid], factor: float) -> None:
    for laid in sums:
        assert laid.elements is not None
        np.multiply(laid.elements, laid.elements.dtype.type(factor), out=laid.elements)
