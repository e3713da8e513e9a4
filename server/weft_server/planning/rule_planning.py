"""Makes the shards' rule of the rule that a job was submitted with. Pure; `rule_check` says whether it can be run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from weft.api.optimizer import BuiltIn, GraphMultiplier, GraphOptimizer, Multiplier, OptimizerSpec
from weft_graph.json_place import escape_token
from weft_graph.program import KeyPlan, Update
from weft_graph.rules.built_in import BUILT_IN, StoredRule, rule_name, states_of, stored_rule
from weft_graph.rules.graph import RuleGraph, rule_graph_from_json, rule_graph_to_json
from weft_graph.rules.parts import why_whole
from weft_graph.rules.schedule import value_at
from weft_graph.rules.torch_variants import VARIANTS, variant

Hyper = dict[str, float | dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What hyper-parameters are multiplied by, for keys whose names match `keys` as in shells."""

    keys: str
    factors: Mapping[str, float]

    def is_for(self, key: str) -> bool:
        return fnmatchcase(key, self.keys)


@dataclass(frozen=True, slots=True)
class RulePlan:
    """What the store is told of a rule. `hyper` has all numbers and schedules; `graph` is a user's own rule."""

    rule: str | dict[str, Any]
    hyper: Hyper
    graph: RuleGraph | None
    stretches: tuple[Stretch, ...]
    fields: Mapping[str, str]
    """{hyper-parameter or `state/NAME`: its place in the job's optimizer}, where that is not its name."""

    @property
    def states(self) -> Mapping[str, float]:
        """What is kept beside each key, in arrays of its shape: {name: start}."""
        return states_of(self.rule)

    @property
    def whole(self) -> str:
        """Why no key may be cut, in words; empty where keys may be."""
        if self.graph is not None:
            return why_whole(self.graph) or ""
        return BUILT_IN[rule_name(self.rule)].whole

    def multipliers(self, key: str) -> dict[str, float]:
        """{hyper-parameter: factor} of a key: the first stretch that is for it counts alone."""
        return next((dict(stretch.factors) for stretch in self.stretches if stretch.is_for(key)), {})


def plan_rule(spec: OptimizerSpec) -> RulePlan:
    """The plan of a rule. Raises GraphError, with a pointer into its document, where a user's is no rule."""
    given: Sequence[Multiplier | GraphMultiplier] = spec.multipliers
    stretches = tuple(Stretch(each.keys, each.factors()) for each in given)
    if isinstance(spec, GraphOptimizer):
        graph = rule_graph_from_json(spec.document)
        hyper: Hyper = {**graph.hyper, **spec.values()}
        given_here = {name: "" if name in spec.hyper else "document/" for name in hyper}
        fields = {name: f"{where}hyper/{escape_token(name)}" for name, where in given_here.items()}
        fields |= {f"state/{name}": f"document/state/{escape_token(name)}" for name in graph.state}
    elif spec.rule in VARIANTS:
        fields = _fields(spec)
        graph, given_numbers = variant(spec.rule), spec.hyper()
        graph = replace(graph, state={**graph.state, **spec.starts()})
        hyper = {name: given_numbers[name] for name in graph.hyper}
    else:
        stored, numbers = stored_rule(spec.rule, spec.hyper(), spec.starts())
        return RulePlan(_plain(stored), numbers, None, stretches, _fields(spec))
    document = rule_graph_to_json(graph)
    document["hyper"] = {name: value_at(value, 0) for name, value in hyper.items()}
    return RulePlan(document, hyper, graph, stretches, fields)


def updated_by_rule(keys: Iterable[KeyPlan]) -> list[KeyPlan]:
    """The keys that the rule updates."""
    return [key for key in keys if key.update is Update.RULE]


def _fields(spec: BuiltIn) -> dict[str, str]:
    """Fields have the names of `torch.optim`, and a pair is one field."""
    words = {name: word if isinstance(word, str) else f"{word[0]}/{word[1]}" for name, word in spec.EARLIER.items()}
    return {**words, "state/sum": "initial_accumulator_value"}


def _plain(rule: StoredRule) -> str | dict[str, Any]:
    return rule if isinstance(rule, str) else dict(rule)
