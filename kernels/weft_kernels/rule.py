"""What an update rule is, and how it is found.

Each built-in rule is one module of `weft_kernels.rules` with a constant `RULE`; a user's is compiled from its graph. A
pointwise rule may be cut over slices and run on some rows of a table; another one needs the key `whole`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cache

from weft_kernels.kernel import Array

State = MutableMapping[str, Array]
"""A rule's state for one slice: arrays of the slice's shape and dtype, by the name that the rule gives them."""

Hyper = Mapping[str, float]

Apply = Callable[[Array, Array, State, int, Hyper], None]
"""apply(weight, gradient, state, step, hyper): writes `weight` and `state` in place, may write `gradient`.

`step` counts the updates of the key from 1. All arrays are one-dimensional, of one length and dtype.
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """An update rule. `state` has its state arrays' names and the number that each starts at; `hyper` every default.

    `whole`: the rule is not pointwise. Its arrays have the key's shape then, and the key is never cut.
    """

    name: str
    state: Mapping[str, float]
    hyper: Mapping[str, float]
    apply: Apply
    whole: bool = False


@cache
def rules() -> Mapping[str, Rule]:
    """Every built-in rule by its name."""
    package = importlib.import_module("weft_kernels.rules")
    found: dict[str, Rule] = {}
    for info in pkgutil.iter_modules(package.__path__):
        rule: Rule = importlib.import_module(f"{package.__name__}.{info.name}").RULE
        found[rule.name] = rule
    return found
