"""Carries out updates of a lot's slices: weights and the rule's state in, and out. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from weft_graph.program import Update
from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kernels.kernel import Array
from weft_kernels.rules.record import Hyper, State
from weft_kernels.run import KernelError
from weft_kvstore.lot_spec import LotSpec
from weft_kvstore.lot_values import LotValues
from weft_kvstore.ranges import Range, ranges_alike
from weft_kvstore.shelf import Laid

RULE_ERRORS: Final = (ArithmeticError, ValueError, MemoryError, KernelError)
"""What a rule or a schedule may raise on the numbers that it meets. Anything else is a fault of the store."""


class RuleFailedError(Exception):
    """A rule cannot make an update: the job ends, not the shard. The text names the rule, key, slice and step."""


class LotUpdate:
    """`values` are the weights, `state` the rule's arrays (elements). `updates` counts, by slice, the updates made."""

    __slots__ = ("_spec", "state", "updates", "values")

    def __init__(self, spec: LotSpec, values: LotValues) -> None:
        self._spec = spec
        self.values = values
        self.state = {name: np.full(int(values.bounds[-1]), spec.rule.state[name], values.dtype) for name in spec.state}
        self.updates = np.zeros(len(spec.part), np.int64)

    def without_gradient(self, first: int, stop: int) -> None:
        """Nobody had anything for a step: a merged gradient is zero, any other value stays."""
        if self._spec.update is Update.GRADIENT:
            for _, _, weight in self.values.written(first, stop):
                weight.fill(0)

    def with_gradient(self, total: Laid, contributors: int, step: int) -> None:
        """Applies a sum of gradients, which is written, as the update of `step`. Raises RuleFailedError."""
        elements, origin = total.elements, self.values.bounds[total.first]
        assert elements is not None
        try:
            hyper = self._spec.hyper.at(step)
            for first, stop, updates in ranges_alike(self.updates[total.first : total.stop], total.first):
                for low, high, weight in self.values.written(first, stop):
                    start, end = self.values.bounds[low], self.values.bounds[high]
                    gradient = elements[start - origin : end - origin]
                    if self._spec.update is not Update.RULE:
                        self._merged(weight, gradient, contributors)
                        continue
                    for a, b in self._pieces(low, high):
                        state = {name: array[start + a : start + b] for name, array in self.state.items()}
                        self._apply(weight[a:b], gradient[a:b], state, updates + 1, hyper)
        except RULE_ERRORS as error:
            name, at = self._spec.rule.name, self._spec.named(total.first)
            raise RuleFailedError(f"rule {name!r} failed on {at}, step {step}: {error}") from error
        self.updates[total.first : total.stop] += 1

    def _apply(self, weight: Array, gradient: Array, state: State, update: int, hyper: Hyper) -> None:
        self._spec.rule.apply(weight, gradient, state, update, hyper)

    def _merged(self, weight: Array, gradient: Array, contributors: int) -> None:
        if self._spec.update is Update.GRADIENT:
            np.copyto(weight, gradient)
        elif gradient.dtype.kind == "f":
            np.divide(gradient, contributors, out=weight)
        else:
            np.floor_divide(gradient, contributors, out=weight)

    def _pieces(self, first: int, stop: int) -> Iterator[Range]:
        """Elements of adjacent slices that the rule gets at once, from 0: what stays in a core's cache where it may be
        cut anywhere, else slice by slice, so that no bit depends on which slices came together."""
        bounds = self.values.bounds[first : stop + 1] - self.values.bounds[first]
        if self._spec.rule.anywhere:
            end = int(bounds[-1])
            yield from ((low, min(low + CACHE_ELEMENTS, end)) for low in range(0, end, CACHE_ELEMENTS))
            return
        for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            yield from ((low, min(low + self._spec.a_piece, end)) for low in range(start, end, self._spec.a_piece))
