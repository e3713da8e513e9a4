"""Makes the shards' rule of the rule that a job was submitted with. Pure; checks nothing: see `rule_check`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from weft.api.rule import GraphMultiplier, GraphRule, Multiplier, RuleSpec
from weft_graph.program import KeyPlan, Update
from weft_graph.rule_graph import rule_graph_from_json, rule_graph_to_json
from weft_graph.rule_parts import why_whole
from weft_graph.rules import StoredRule, states_of, stored_rule
from weft_graph.schedule import value_at

Hyper = dict[str, float | dict[str, Any]]


@dataclass(frozen=True, slots=True)
class RulePlan:
    """What the store is told of a rule. `hyper` has all numbers and schedules; `whole`: no key may be cut."""

    rule: str | dict[str, Any]
    hyper: Hyper
    whole: bool
    multipliers: Callable[[str], dict[str, float]]
    """Key -> {hyper-parameter: factor}."""

    @property
    def states(self) -> Mapping[str, float]:
        """What is kept beside each key, in arrays of its shape: {name: start}."""
        return states_of(self.rule)


def plan_rule(spec: RuleSpec) -> RulePlan:
    """The plan of a rule that has passed `rule_check`."""
    rule, hyper = rule_of(spec)
    whole = isinstance(spec, GraphRule) and why_whole(rule_graph_from_json(spec.document)) is not None
    given: Sequence[Multiplier | GraphMultiplier] = spec.multipliers
    patterns = [(each.keys, each.factors()) for each in given]

    def multipliers(key: str) -> dict[str, float]:
        return next((dict(factors) for pattern, factors in patterns if fnmatchcase(key, pattern)), {})

    return RulePlan(rule, hyper, whole, multipliers)


def rule_of(spec: RuleSpec) -> tuple[str | dict[str, Any], Hyper]:
    """(the shards' rule, its hyper-parameters), every one of them."""
    if not isinstance(spec, GraphRule):
        stored, numbers = stored_rule(spec.name, spec.hyper(), spec.starts())
        return _plain(stored), numbers
    rule = rule_graph_from_json(spec.document)
    hyper: Hyper = {**rule.hyper, **spec.values()}
    document = rule_graph_to_json(rule)
    document["hyper"] = {name: value_at(value, 0) for name, value in hyper.items()}
    return document, hyper


def updated_by_rule(keys: Iterable[KeyPlan]) -> list[KeyPlan]:
    """The keys that the rule updates."""
    return [key for key in keys if key.update is Update.RULE]


def _plain(rule: StoredRule) -> str | dict[str, Any]:
    return rule if isinstance(rule, str) else dict(rule)
