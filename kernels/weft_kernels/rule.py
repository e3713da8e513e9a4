"""What an update rule is, and how it is found.

Each built-in rule is one module of `weft_kernels.rules` with a constant `RULE`; a user's is compiled from its graph. A
pointwise rule may be cut over slices and run on some rows of a table; another one needs the key `whole`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from weft_graph.errors import GraphFormatError
from weft_graph.json_place import Place, shown
from weft_kernels.kernel import Array

State = MutableMapping[str, Array]
"""A rule's state for one slice: arrays of the slice's shape and dtype, by the name that the rule gives them."""

Hyper = Mapping[str, float]

Apply = Callable[[Array, Array, State, int, Hyper], None]
"""apply(weight, gradient, state, step, hyper): writes `weight` and `state` in place, may write `gradient`.

`step` counts the updates of the key from 1. All arrays are C-contiguous, of one shape and dtype.
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


def rule_from(rule: str | Mapping[str, Any]) -> Rule:
    """A built-in rule by its name; by a document, one whose state starts at other numbers, or a user's, compiled.

    Documents are `{"name", "state": {name: start}}`, and those of `weft_graph.rule_graph`. Raises ValueError, naming
    what is wrong.
    """
    if isinstance(rule, Mapping) and "graph" in rule:
        from weft_kernels.rule_graph import compiled  # which makes a Rule

        return compiled(rule)
    name = rule if isinstance(rule, str) else rule.get("name")
    found = rules().get(name) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"rule: {shown(name)} is none of {', '.join(sorted(rules()))}")
    return found if isinstance(rule, str) else _started(found, rule)


def _started(rule: Rule, document: Mapping[str, Any]) -> Rule:
    """The built-in rule with the document's `state`: {name: start}."""
    try:
        fields = Place(document).fields(("name", "state"))
        state = {name: start.number() for name, start in fields["state"].members(len(rule.state)).items()}
    except GraphFormatError as error:
        raise ValueError(f"rule {rule.name!r}: {error}") from None
    unknown = sorted(state.keys() - rule.state.keys())
    if unknown:
        raise ValueError(f"rule {rule.name!r} has no state {unknown[0]!r}; it has {', '.join(rule.state) or 'none'}")
    return replace(rule, state={**rule.state, **state})
