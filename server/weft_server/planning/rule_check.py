"""Whether a submitted rule can update the job's parameters. Pure. Pointers lead into the job's `/optimizer`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.api.optimizer import OptimizerSpec
from weft.api.problem import FieldError
from weft_graph.errors import GraphError
from weft_graph.json_place import escape_token
from weft_graph.program import KeyPlan
from weft_graph.rules.built_in import rule_name
from weft_graph.rules.cost import check_built_in_for, check_rule_for
from weft_graph.rules.graph import RuleGraph
from weft_graph.rules.largest import ends, out_of_range
from weft_graph.rules.parts import why_whole
from weft_server.planning.rule_planning import RulePlan, Stretch, plan_rule, updated_by_rule
from weft_server.refusals import JobRefusedError, listed

DOCUMENT = "/optimizer/document"

MOST_TYPES = 128
"""Each is a graph to infer here, and one to compile on a shard; the largest models have a few dozen."""


def read_rule(spec: OptimizerSpec) -> RulePlan:
    """The rule's plan. Raises JobRefusedError with the first thing that is wrong with a user's own graph."""
    try:
        return plan_rule(spec)
    except GraphError as error:
        detail = f"optimizer: {error.message}"
        raise JobRefusedError(
            [FieldError(pointer=f"{DOCUMENT}{error.pointer}", detail=detail, node=error.node)]
        ) from error


def rule_errors(rule: RulePlan, keys: Sequence[KeyPlan]) -> Iterator[FieldError]:
    """Everything that is wrong with the rule for these keys."""
    trained = updated_by_rule(keys)
    known: Mapping[str, object] = rule.hyper if rule.graph is None else rule.graph.hyper
    if rule.graph is not None:
        yield from _hyper_errors(rule.hyper, rule.graph)
        yield from _key_errors(rule.graph, trained)
    else:
        yield from _built_in_errors(rule_name(rule.rule), trained)
    yield from _stretch_errors(rule.stretches, known, [key.key for key in trained])
    yield from _range_errors(rule, trained)


def _hyper_errors(given: Mapping[str, object], rule: RuleGraph) -> Iterator[FieldError]:
    for name in given.keys() - rule.hyper.keys():
        detail = f"optimizer {rule.name!r} has no hyper-parameter {name!r}; it has {listed(rule.hyper) or 'none'}"
        yield FieldError(pointer=f"/optimizer/hyper/{escape_token(name)}", detail=detail)


def _key_errors(rule: RuleGraph, keys: Sequence[KeyPlan]) -> Iterator[FieldError]:
    """What is wrong for the first key of each type; a rule that goes element by element does not look at shapes."""
    whole = why_whole(rule) is not None
    seen: set[tuple[str, bool]] = set()
    for key in keys:
        kind = (str(key.type) if whole else key.type.dtype.value, key.rows)
        if kind in seen:
            continue
        if len(seen) == MOST_TYPES:
            detail = (
                f"key {key.key!r}: an optimizer that needs keys whole is for parameters of at most {MOST_TYPES} shapes"
            )
            yield FieldError(pointer=f"{DOCUMENT}/graph", detail=detail, node=key.key)
            return
        seen.add(kind)
        try:
            check_rule_for(rule, key.key, key.type, rows=key.rows)
        except GraphError as error:
            yield FieldError(pointer=f"{DOCUMENT}{error.pointer}", detail=error.message, node=error.node)


def _built_in_errors(name: str, keys: Sequence[KeyPlan]) -> Iterator[FieldError]:
    for key in keys:
        try:
            check_built_in_for(name, key.key, key.type, rows=key.rows)
        except GraphError as error:
            yield FieldError(pointer=f"/optimizer{error.pointer}", detail=error.message, node=error.node)


def _stretch_errors(
    stretches: Sequence[Stretch], known: Mapping[str, object], keys: Sequence[str]
) -> Iterator[FieldError]:
    for index, stretch in enumerate(stretches):
        pointer = f"/optimizer/multipliers/{index}"
        if not any(map(stretch.is_for, keys)):
            detail = f"{stretch.keys!r} matches no parameter that is trained; there are {listed(keys)}"
            yield FieldError(pointer=f"{pointer}/keys", detail=detail)
        for name in stretch.factors:
            if name not in known:
                detail = f"the optimizer has no hyper-parameter {name!r}; it has {listed(known) or 'none'}"
                yield FieldError(pointer=f"{pointer}/{escape_token(name)}", detail=detail)


def _range_errors(rule: RulePlan, keys: Sequence[KeyPlan]) -> Iterator[FieldError]:
    """Numbers that a rule cannot compute with in the type of a key, where they are multiplied for it: infinite ones,
    and such as are 0 there and were not given so."""
    numbers = {**ends(rule.hyper), **{f"state/{name}": (start,) for name, start in rule.states.items()}}
    for key in keys:
        factors = rule.multipliers(key.key)
        for name, reached in numbers.items():
            factor = factors.get(name, 1.0)
            whys = ((each, out_of_range(each, key.type.dtype.value, factor)) for each in reached)
            number, why = next((each for each in whys if each[1] is not None), (0.0, None))
            if why is None and name == "epsilon" and 0.0 in reached:
                why = "is what its schedule comes to, and the optimizer divides by it: end above 0"
            if why is not None:
                told = f", multiplied by {factor:g}" if name in factors else ""
                field = rule.fields.get(name, name).rpartition("hyper/")[2]
                detail = f"{field!r}: {number:g}{told} {why}, for parameter {key.key!r} of {key.type.dtype}"
                yield FieldError(pointer=_number_pointer(rule, key.key, name), detail=detail, node=key.key)


def _number_pointer(rule: RulePlan, key: str, name: str) -> str:
    """Where a key's number comes from: what it is multiplied by, if it is, else the rule."""
    for index, stretch in enumerate(rule.stretches):
        if stretch.is_for(key):
            if name in stretch.factors:
                return f"/optimizer/multipliers/{index}/{escape_token(name)}"
            break
    return f"/optimizer/{rule.fields.get(name) or escape_token(name)}"
