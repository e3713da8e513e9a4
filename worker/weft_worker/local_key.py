"""One key that a worker updates itself: its value, the rule's state, and what happens at each version. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft_kernels.rule import Rule, State
from weft_kvstore.description import KeyDescription, StoreDescription
from weft_kvstore.hyper import KeyHyper
from weft_kvstore.store import Array


class LocalKey:
    """A key's value and state at `version`, which counts its updates; None before its first value is there.

    The rule runs on the whole key at once: flat where it is pointwise, as on a shard's slices: the same bits.
    """

    def __init__(self, key: KeyDescription, rule: Rule, description: StoreDescription) -> None:
        self.key = key
        self.version: int | None = None
        self._rule = rule
        self._hyper = KeyHyper({**rule.hyper, **description.hyper}, key.multipliers)
        self._shape = tuple(key.shape)
        self._worked_shape = self._shape if rule.whole else (key.size,)
        dtype = np.dtype(key.dtype)
        self._weight: Array = np.empty(0, dtype)
        self._state: State = {name: np.full(self._worked_shape, start, dtype) for name, start in rule.state.items()}

    def begin(self, first: Array) -> None:
        """Takes over the first value."""
        self._weight = first.reshape(self._worked_shape)
        self.version = 0

    def update(self, gradient: Array) -> None:
        """Applies the rule with the merged gradient of the step that `version` counts, which is used up."""
        assert self.version is not None
        step = self.version
        with np.errstate(all="ignore"):  # What overflows is the user's to see in the values.
            self._rule.apply(
                self._weight, gradient.reshape(self._worked_shape), self._state, step + 1, self._hyper.at(step)
            )
        self.version = step + 1

    def value(self) -> Array:
        """A copy, for whoever asked."""
        return self._weight.reshape(self._shape).copy()

    def state(self) -> Mapping[str, Array]:
        """Copies, by the rule's names."""
        return {name: array.reshape(self._shape).copy() for name, array in self._state.items()}
