"""What an update rule is; `weft_kernels.rules.lookup` finds one.

A pointwise rule may be cut over slices and run on some rows of a table; another one needs the key `whole`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass

from weft_kernels.kernel import Array

State = MutableMapping[str, Array]
"""A rule's state for one slice: arrays of the slice's shape and dtype, by the name that the rule gives them."""

Hyper = Mapping[str, float]

Apply = Callable[[Array, Array, State, int, Hyper], None]
"""apply(weight, gradient, state, step, hyper): writes `weight` and `state` in place, and nothing else.

`step` counts the updates of the key from 1. All arrays are C-contiguous, of one shape and dtype.
"""

Still = Callable[[Hyper], tuple[str, ...] | None]
"""States by name: where all of them are 0, an update with these numbers and a gradient of zeros leaves every bit as it
is, at any step. Empty: it does so everywhere. None: it may move something anywhere."""


@dataclass(frozen=True, slots=True)
class Rule:
    """An update rule. `state` has its state arrays' names and the number that each starts at; `hyper` every default.
    `apply_over` gives the same bits as `apply`, and faster: it may write the gradient too.

    `whole`: the rule is not pointwise. Its arrays have the key's shape then, and the key is never cut. `anywhere`: each
    element's update is the same bits in whatever array it is computed, for it is made of operations that are rounded
    correctly (+, -, *, /, square root) alone. `counts`: an update reads the step. `still` is None where nothing is
    known of gradients of zeros. `fractions` are hyper-parameters whose magnitude has to be below 1.
    """

    name: str
    state: Mapping[str, float]
    hyper: Mapping[str, float]
    apply: Apply
    whole: bool = False
    anywhere: bool = False
    counts: bool = True
    still: Still | None = None
    apply_over: Apply | None = None
    fractions: frozenset[str] = frozenset()
