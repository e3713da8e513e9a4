"""What an update rule is, and how it is found.

Each rule is one module of `weft_kernels.rules` with a constant `RULE`. A rule is pointwise: it may be cut over slices.
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
    """An update rule. `state` names its state arrays, which start at zero; `hyper` has every default."""

    name: str
    state: tuple[str, ...]
    hyper: Mapping[str, float]
    apply: Apply


@cache
def rules() -> Mapping[str, Rule]:
    """Every built-in rule by its name."""
    package = importlib.import_module("weft_kernels.rules")
    found: dict[str, Rule] = {}
    for info in pkgutil.iter_modules(package.__path__):
        rule: Rule = importlib.import_module(f"{package.__name__}.{info.name}").RULE
        found[rule.name] = rule
    return found
