"""Finds update rules: the built-in ones by name, and a user's by its document, compiled."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from weft_graph.errors import GraphFormatError
from weft_graph.json_place import Place, shown
from weft_graph.spelling import did_you_mean
from weft_kernels.rules.compiled import compiled
from weft_kernels.rules.record import Rule


@cache
def rules() -> Mapping[str, Rule]:
    """Every built-in rule by its name: each is one module of `weft_kernels.rules.built_in` with a constant `RULE`."""
    package = importlib.import_module("weft_kernels.rules.built_in")
    found: dict[str, Rule] = {}
    for info in pkgutil.iter_modules(package.__path__):
        rule: Rule = importlib.import_module(f"{package.__name__}.{info.name}").RULE
        found[rule.name] = rule
    return found


def rule_from(rule: str | Mapping[str, Any]) -> Rule:
    """A built-in rule by its name; by a document, one whose state starts at other numbers, or a user's, compiled.

    Documents are `{"name", "state": {name: start}}`, and those of `weft_graph.rules.graph`. Raises ValueError, naming
    what is wrong.
    """
    if isinstance(rule, Mapping) and "graph" in rule:
        return compiled(rule)
    name = rule if isinstance(rule, str) else rule.get("name")
    found = rules().get(name) if isinstance(name, str) else None
    if found is None:
        meant = did_you_mean(name, rules()) if isinstance(name, str) else ""
        raise ValueError(f"rule: {shown(name)} is none of {', '.join(sorted(rules()))}{meant}")
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
