"""Whether a submitted rule can update the job's parameters. Pure. Pointers lead into the job's `/rule`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from weft.api.problem import FieldError
from weft.api.rule import GraphMultiplier, GraphRule, Multiplier, RuleSpec
from weft_graph.errors import GraphError
from weft_graph.json_place import escape_token
from weft_graph.program import KeyPlan
from weft_graph.rule_cost import check_rule_for
from weft_graph.rule_graph import RuleGraph, rule_graph_from_json
from weft_graph.rule_parts import why_whole
from weft_server.data_check import listed
from weft_server.rule_planning import rule_of, updated_by_rule

DOCUMENT = "/rule/document"

MOST_TYPES = 128
"""Each is a graph to infer here, and one to compile on a shard; the largest models have a few dozen."""


def rule_errors(spec: RuleSpec, keys: Sequence[KeyPlan]) -> Iterator[FieldError]:
    """Everything that is wrong with the rule for these keys; the first thing alone that is wrong with its graph."""
    trained = updated_by_rule(keys)
    if isinstance(spec, GraphRule):
        try:
            rule = rule_graph_from_json(spec.document)
        except GraphError as error:
            yield FieldError(pointer=f"{DOCUMENT}{error.pointer}", detail=f"rule: {error.message}", node=error.node)
            return
        yield from _hyper_errors(spec, rule)
        yield from _key_errors(rule, trained)
        known: Mapping[str, object] = rule.hyper
    else:
        known = rule_of(spec)[1]
    yield from _multiplier_errors(spec, known, [key.key for key in trained])


def _hyper_errors(spec: GraphRule, rule: RuleGraph) -> Iterator[FieldError]:
    for name in spec.hyper.keys() - rule.hyper.keys():
        detail = f"rule {rule.name!r} has no hyper-parameter {name!r}; it has {listed(rule.hyper) or 'none'}"
        yield FieldError(pointer=f"/rule/hyper/{escape_token(name)}", detail=detail)


def _key_errors(rule: RuleGraph, keys: Sequence[KeyPlan]) -> Iterator[FieldError]:
    """What is wrong for the first key of each type; a rule that goes element by element does not look at shapes."""
    whole = why_whole(rule) is not None
    seen: set[tuple[str, bool]] = set()
    for key in keys:
        kind = (str(key.type) if whole else key.type.dtype.value, key.rows)
        if kind in seen:
            continue
        if len(seen) == MOST_TYPES:
            detail = f"key {key.key!r}: a rule that needs keys whole is for parameters of at most {MOST_TYPES} shapes"
            yield FieldError(pointer=f"{DOCUMENT}/graph", detail=detail, node=key.key)
            return
        seen.add(kind)
        try:
            check_rule_for(rule, key.key, key.type, rows=key.rows)
        except GraphError as error:
            yield FieldError(pointer=f"{DOCUMENT}{error.pointer}", detail=error.message, node=error.node)


def _multiplier_errors(spec: RuleSpec, known: Mapping[str, object], keys: Sequence[str]) -> Iterator[FieldError]:
    multipliers: Sequence[Multiplier | GraphMultiplier] = spec.multipliers
    for index, multiplier in enumerate(multipliers):
        pointer = f"/rule/multipliers/{index}"
        if not any(fnmatchcase(key, multiplier.keys) for key in keys):
            detail = f"{multiplier.keys!r} matches no parameter that is trained; there are {listed(keys)}"
            yield FieldError(pointer=f"{pointer}/keys", detail=detail)
        for name in multiplier.factors():
            if name not in known:
                detail = f"the rule has no hyper-parameter {name!r}; it has {listed(known) or 'none'}"
                yield FieldError(pointer=f"{pointer}/{escape_token(name)}", detail=detail)
