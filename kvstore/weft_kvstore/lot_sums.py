"""The sums of a lot's steps that are being merged. Pure."""

from __future__ import annotations

import numpy as np

from weft_kvstore.shelf import Laid, Shelf
from weft_kvstore.store import Array


class LotSums:
    """Of each slice one sum, that of its next step. `contributors` counts the gradients in it, by slice."""

    __slots__ = ("_totals", "contributors")

    def __init__(self, slices: int, bounds: Array) -> None:
        self._totals = Shelf(bounds)
        self.contributors = np.zeros(slices, np.int64)

    def add(self, laid: Laid) -> None:
        """Adds gradients, from the left to the right: sum + gradient. Their memory is taken over and written."""
        if laid.elements is None:
            return
        at = laid.first
        for total in self._totals.take(laid.first, laid.stop):
            if at < total.first:
                self._totals.put(self._totals.part(laid, at, total.first))
            elements = self._totals.part(laid, total.first, total.stop).elements
            assert total.elements is not None
            assert elements is not None
            np.add(total.elements, elements, out=total.elements)
            self._totals.put(total)
            at = total.stop
        if at < laid.stop:
            self._totals.put(self._totals.part(laid, at, laid.stop))
        self.contributors[laid.first : laid.stop] += 1

    def take(self, first: int, stop: int) -> list[Laid]:
        """The sums of these slices, where there are any; they begin anew."""
        self.contributors[first:stop] = 0
        return self._totals.take(first, stop)

    def look(self, first: int, stop: int) -> list[Laid]:
        """The sums of these slices, to be written; they stay."""
        found = self._totals.take(first, stop)
        for laid in found:
            self._totals.put(laid)
        return found
