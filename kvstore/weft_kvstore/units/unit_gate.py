"""A unit at the gate of its shard: a merged gradient is measured, and goes on as the slots have agreed on it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Final, Generic

import numpy as np

from weft_graph.program import Update
from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.exact_sum import exact_sum
from weft_kvstore.merging.step_gate import StepGate
from weft_kvstore.merging.steps import Complete, G
from weft_kvstore.merging.work import PIECE_ELEMENTS
from weft_kvstore.units.key_rules import KeyRules

_NEVER: Final = -1


class UnitGate(Generic[G]):
    """Invariant: `_measured` is the last step that the gate was told of, and each is told once."""

    __slots__ = ("_elements", "_gate", "_measured", "_spec")

    def __init__(self, gate: StepGate, spec: KeyRules, elements: Callable[[G], Array]) -> None:
        """`elements` gives all of a gradient, to be written: (elements), or (rows, width) where each row has a
        square."""
        self._gate = gate
        self._spec = spec
        self._elements = elements
        self._measured = _NEVER

    def passing(self, complete: Complete[G]) -> Generator[None, None, Complete[G] | None]:
        """The update as the slots have agreed on it: clipped, or without a gradient where the step is skipped. None
        before they have; the first time what it amounts to is measured. The gradient is written."""
        step, total = complete.step, complete.total
        is_summed = total is not None and self._spec.update is not Update.MEAN
        if self._measured != step:
            squares: int | None = 0
            if total is not None and is_summed:
                if not self._spec.unscaled:
                    yield from self._multiply(total, 1.0 / self._gate.scale)
                squares = yield from self._squares(total)
            self._measured = step
            self._gate.hold(step, squares)
        verdict = self._gate.verdict(step)
        if verdict is None:
            return None
        if verdict.factor is None:
            return Complete(step, 0, None)
        if total is not None and is_summed:
            yield from self._multiply(total, verdict.factor)
        return complete

    def missing(self, step: int) -> tuple[str, list[int]] | None:
        """What a step that was measured here waits for, in words, and the slots that are missing; None before it is."""
        return self._gate.missing(step) if self._measured == step else None

    def _multiply(self, total: G, factor: float) -> Iterator[None]:
        if factor == 1.0:
            return
        elements = self._elements(total)
        for some in _pieces(elements):
            np.multiply(some, some.dtype.type(factor), out=some)
            if elements.size > PIECE_ELEMENTS:
                yield

    def _squares(self, total: G) -> Generator[None, None, int | None]:
        """The exact sum of what each row's, or piece's, squares add up to; None where that is not finite."""
        elements, found = self._elements(total), 0
        for some in _pieces(elements):
            squares = np.square(some, dtype=np.float64)
            exact = exact_sum(squares.sum(axis=1) if some.ndim > 1 else squares.sum(keepdims=True))
            if exact is None:
                return None
            found += exact
            if elements.size > PIECE_ELEMENTS:
                yield
        return found


def _pieces(elements: Array) -> Iterator[Array]:
    """Parts of an array along its first axis, of some `PIECE_ELEMENTS` elements."""
    width = elements.shape[1] if elements.ndim > 1 else 1
    a_piece = max(PIECE_ELEMENTS // max(width, 1), 1)
    return (elements[low : low + a_piece] for low in range(0, len(elements), a_piece))
