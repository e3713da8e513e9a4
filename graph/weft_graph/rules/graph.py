"""A user's update rule: a small graph from weight, gradient, state, step and hyper-parameters to weight and state.

The document is `{"name", "graph", "state": {name: start}, "hyper": {name: default}, "next": {"weight": value, ...}}`.
The graph's inputs are `weight`, `gradient` and each state, all of one float type whose dimensions are names, and float
scalars `step` (the key's updates, from 1) and each hyper-parameter. `next` names what takes the place of the weight and
of each state.

The element type stands for that of the key that is updated: a rule written once is for keys of any float type. What
is worked out of step, hyper-parameters and single constants alone is float64 for every key; see `rules.binding`.
A weight of one dimension stands for all elements of a key of any shape; one of more, for keys of that many dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from weft_graph.check import problems
from weft_graph.cost import is_counted
from weft_graph.errors import DTypeError, GraphError, GraphRefusedError, ShapeError
from weft_graph.infer import infer
from weft_graph.ir import Graph
from weft_graph.json_form import Json, graph_from_place, graph_to_json
from weft_graph.json_place import Place, escape_token
from weft_graph.limits import Limits
from weft_graph.passes.simplify import without_dead_code
from weft_graph.schema import schema_of
from weft_graph.types import TensorType

WEIGHT: Final = "weight"
GRADIENT: Final = "gradient"
STEP: Final = "step"
OF_EVERY_RULE: Final = (WEIGHT, GRADIENT, STEP)

MOST_STATES: Final = 8
"""Each is as large as the key; no published rule has more than four."""
MOST_HYPER: Final = 64

RULE_LIMITS: Final = Limits(
    name=256,
    text=4096,
    rank=16,
    dim=1 << 16,
    elements=1 << 14,
    records=256,
    nodes=256,
    node_values=64,
    values=1 << 11,
    attributes=64,
    attribute_items=64,
    constant_bytes=1 << 17,
)
"""A rule is run for every slice of every step: what is written by hand is below forty nodes and has no data in it."""


@dataclass(frozen=True, slots=True, eq=False)
class RuleGraph:
    """A rule that is legal, as `checked` gives it. `graph` has every input, and of the rest what leads to `next`, in an
    order that can be run.

    `state` has the number that each state starts at, `hyper` each default; `next` has `weight` and every state.
    """

    name: str
    graph: Graph
    state: Mapping[str, float]
    hyper: Mapping[str, float]
    next: Mapping[str, str]

    @property
    def type(self) -> TensorType:
        """The type of weight, gradient and states as the rule was written."""
        return next(input_.type for input_ in self.graph.inputs if input_.name == WEIGHT)

    @property
    def is_flat(self) -> bool:
        """Whether it is written for a key's elements in one row, whatever the key's shape."""
        return self.type.rank == 1

    @property
    def arrays(self) -> tuple[str, ...]:
        """The inputs that are as large as the key."""
        return (WEIGHT, GRADIENT, *self.state)


def rule_graph_to_json(rule: RuleGraph) -> Json:
    """The rule as a JSON document."""
    return {
        "name": rule.name,
        "graph": graph_to_json(rule.graph),
        "state": dict(rule.state),
        "hyper": dict(rule.hyper),
        "next": dict(rule.next),
    }


def rule_graph_from_json(document: object, pointer: str = "") -> RuleGraph:
    """Reads a rule's document of any origin. Raises GraphError, whose pointer begins with `pointer`.

    What comes back is within `RULE_LIMITS` and legal for keys of some shape; `rules.binding` says whether it is for one
    of a given shape.
    """
    fields = Place(document, pointer, RULE_LIMITS).fields(("name", "graph", "next"), ("state", "hyper"))
    rule = RuleGraph(
        name=fields["name"].name(),
        graph=graph_from_place(fields["graph"]),
        state=_numbers(fields, "state", MOST_STATES),
        hyper=_numbers(fields, "hyper", MOST_HYPER),
        next=MappingProxyType({key: value.name() for key, value in fields["next"].members(MOST_STATES + 1).items()}),
    )
    return checked(rule, pointer)


def checked(rule: RuleGraph, pointer: str = "") -> RuleGraph:
    """The rule without nodes that nobody reads. Raises GraphError where it is not legal; see `rule_graph_from_json`."""
    try:
        for legality in _LEGALITIES:
            for problem in legality(rule):
                raise problem
    except GraphError as error:
        raise type(error)(error.message, pointer=pointer + error.pointer, node=error.node) from None
    alive = without_dead_code(rule.graph, rule.next.values())
    return replace(rule, graph=replace(alive, inputs=rule.graph.inputs))


def _numbers(fields: Mapping[str, Place], name: str, most: int) -> Mapping[str, float]:
    members = fields[name].members(most) if name in fields else {}
    return MappingProxyType({key: value.number() for key, value in members.items()})


Legality = Callable[[RuleGraph], Iterator[GraphError]]


def _names_differ(rule: RuleGraph) -> Iterator[GraphError]:
    for field, names in (("state", rule.state), ("hyper", rule.hyper)):
        for name, number in names.items():
            pointer = f"/{field}/{escape_token(name)}"
            if name in OF_EVERY_RULE or (field == "hyper" and name in rule.state):
                yield GraphRefusedError(f"{field} {name!r}: the name has a meaning already", pointer=pointer, node=name)
            if not math.isfinite(number):
                yield GraphRefusedError(
                    f"{field} {name!r} is {number}, which is not finite", pointer=pointer, node=name
                )


def _graph_is_legal(rule: RuleGraph) -> Iterator[GraphError]:
    for problem in problems(rule.graph):
        yield type(problem)(problem.message, pointer=f"/graph{problem.pointer}", node=problem.node)
    for parameter in rule.graph.parameters:
        message = f"parameter {parameter.name!r}: a rule has none; what it keeps for each key is its state"
        yield GraphRefusedError(message, pointer="/graph/parameters", node=parameter.name)


def _operators_are_counted(rule: RuleGraph) -> Iterator[GraphError]:
    for index, node in enumerate(rule.graph.nodes):
        if not is_counted(schema_of(node)):
            message = (
                f"node {node.name!r} ({node.op_type}): a rule takes operators that go element by element, reductions, "
                f"products of matrices and what arranges elements; {node.op_type} is none of them"
            )
            yield GraphRefusedError(message, pointer=f"/graph/nodes/{index}/op_type", node=node.name)


def _inputs_are_known(rule: RuleGraph) -> Iterator[GraphError]:
    types = {input_.name: input_.type for input_ in rule.graph.inputs}
    for name in (*rule.arrays, *rule.hyper):
        if name not in types:
            field = "hyper" if name in rule.hyper else "state" if name in rule.state else "graph/inputs"
            pointer = f"/{field}" if field == "graph/inputs" else f"/{field}/{escape_token(name)}"
            has = ", ".join(map(repr, types)) or "none"
            yield GraphRefusedError(f"the graph has no input {name!r}; it has {has}", pointer=pointer, node=name)
            return
    weight = types[WEIGHT]
    for index, input_ in enumerate(rule.graph.inputs):
        pointer = f"/graph/inputs/{index}"
        if input_.name in rule.arrays:
            yield from _array_problems(input_.name, input_.type, weight, pointer)
        elif input_.name not in rule.hyper and input_.name != STEP:
            message = (
                f"input {input_.name!r} is neither {', '.join(OF_EVERY_RULE)} nor a state "
                f"({', '.join(rule.state) or 'none'}) nor a hyper-parameter ({', '.join(rule.hyper) or 'none'})"
            )
            yield GraphRefusedError(message, pointer=f"{pointer}/name", node=input_.name)
        elif input_.type.rank or not input_.type.dtype.is_float:
            message = f"input {input_.name!r} is {input_.type}; it is one number, {weight.dtype}[]"
            yield ShapeError(message, pointer=pointer, node=input_.name)


def _array_problems(name: str, type_: TensorType, weight: TensorType, pointer: str) -> Iterator[GraphError]:
    if not type_.dtype.is_float:
        yield DTypeError(f"input {name!r} is {type_}; it is floats", pointer=f"{pointer}/dtype", node=name)
    elif not type_.rank or any(isinstance(dim, int) for dim in type_.shape):
        message = f"input {name!r} is {type_}; its dimensions are names, at least one, which stand for those of a key"
        yield ShapeError(message, pointer=f"{pointer}/shape", node=name)
    elif type_ != weight:
        message = f"input {name!r} is {type_} and 'weight' is {weight}; they are of one type"
        yield ShapeError(message, pointer=pointer, node=name)


def _next_is_whole(rule: RuleGraph) -> Iterator[GraphError]:
    wanted = (WEIGHT, *rule.state)
    for name in wanted:
        if name not in rule.next:
            yield GraphRefusedError(f"next: nothing takes the place of {name!r}", pointer="/next", node=name)
    for name, value in rule.next.items():
        pointer = f"/next/{escape_token(name)}"
        if name not in wanted:
            message = f"next: {name!r} is neither the weight nor a state; there are {', '.join(wanted)}"
            yield GraphRefusedError(message, pointer=pointer, node=name)
        elif value not in rule.graph.outputs:
            yield GraphRefusedError(f"next: {value!r} is no output of the graph", pointer=pointer, node=value)


def _types_are_kept(rule: RuleGraph) -> Iterator[GraphError]:
    try:
        types = infer(rule.graph)
    except GraphError as error:
        yield type(error)(error.message, pointer=f"/graph{error.pointer}", node=error.node)
        return
    weight = types[WEIGHT]
    for name, value in rule.next.items():
        if types[value] != weight:
            message = f"next: {value!r} is {types[value]}, and {name!r} is {weight}"
            yield ShapeError(message, pointer=f"/next/{escape_token(name)}", node=value)


def _gradient_is_read(rule: RuleGraph) -> Iterator[GraphError]:
    alive = without_dead_code(rule.graph, rule.next.values())
    if all(GRADIENT not in node.inputs for node in alive.nodes) and GRADIENT not in rule.next.values():
        yield GraphRefusedError("the rule never reads 'gradient'", pointer="/next/weight", node=GRADIENT)


_LEGALITIES: Final[tuple[Legality, ...]] = (
    _names_differ,
    _inputs_are_known,
    _graph_is_legal,
    _operators_are_counted,
    _next_is_whole,
    _types_are_kept,
    _gradient_is_read,
)
