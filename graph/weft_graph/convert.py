"""The converter: from a user's graph to the programs that workers run and the keys that shards keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft_graph.check import check
from weft_graph.errors import GraphRefusedError, ShapeError
from weft_graph.infer import infer
from weft_graph.ir import Graph
from weft_graph.passes.draft import Draft, Options
from weft_graph.passes.pipeline import ROLES, SHARED, Watch, run_passes
from weft_graph.program import LOSS, KeyPlan, Program, Programs, Role, Update
from weft_graph.topological import topological_order
from weft_graph.types import TensorType


def convert(
    graph: Graph,
    *,
    loss: str,
    metrics: Mapping[str, str],
    options: Options | None = None,
    watch: Watch | None = None,
) -> Programs:
    """The programs of a graph whose output `loss` is made small, and its keys in the order of the parameters.

    Both programs have the outputs `loss` and, by their names, `metrics`. `watch` sees the draft before and after each
    pass. Raises GraphRefusedError, or one of its kinds, where the graph is not legal, cannot be differentiated, or
    where loss or metrics are no scalar outputs of it.
    """
    check(graph)
    types = infer(graph)
    outputs = _outputs(graph, types, loss, metrics)
    options = options or Options()
    ordered = replace(graph, nodes=topological_order(graph.nodes))
    shared = run_passes(SHARED, Draft(None, graph, ordered, types, outputs), options, watch)

    def program(role: Role) -> Program:
        return run_passes(ROLES[role], replace(shared, role=role), options, watch).program()

    return Programs(train=program(Role.TRAIN), evaluate=program(Role.EVALUATE), keys=_keys(shared))


def _outputs(graph: Graph, types: Mapping[str, TensorType], loss: str, metrics: Mapping[str, str]) -> Mapping[str, str]:
    if metrics.get(LOSS, loss) != loss:
        raise GraphRefusedError(f"metric {LOSS!r} is always the loss, {loss!r}; it cannot be {metrics[LOSS]!r}")
    outputs = {LOSS: loss, **metrics}
    for name, value in outputs.items():
        what = "loss" if name == LOSS else f"metric {name!r}"
        if value not in graph.outputs:
            has = ", ".join(map(repr, graph.outputs))
            raise GraphRefusedError(f"{what} is {value!r}, which is no output of the graph; it has {has}", node=value)
        if types[value].rank:
            detail = f"{what} is {value!r}, which is {types[value]}; it must be a scalar, as a mean over the batch is"
            raise ShapeError(detail, node=value)
    return MappingProxyType(outputs)


def _keys(draft: Draft) -> tuple[KeyPlan, ...]:
    """What the store keeps, in the order of the user's parameters."""
    return tuple(
        KeyPlan(
            key=parameter.name,
            type=parameter.type,
            initializer=parameter.initializer,
            update=Update.RULE if parameter.trainable else Update.MEAN,
            priority=draft.urgency[parameter.name],
            rows=parameter.name in draft.tables.keys,
            dense_because=draft.tables.dense.get(parameter.name, ""),
            lazy_update=parameter.lazy_update,
        )
        for parameter in draft.source.parameters
    )
