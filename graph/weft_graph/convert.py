"""The converter: from a user's graph to the programs that workers run and the keys that shards keep."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from weft_graph.check import check
from weft_graph.communication import insert_fetches, insert_sends
from weft_graph.dead_code import without_dead_code
from weft_graph.differentiate import differentiate
from weft_graph.errors import GraphRefusedError, ShapeError
from weft_graph.infer import infer
from weft_graph.inference_mode import to_inference
from weft_graph.ir import Graph, Node
from weft_graph.priorities import priorities
from weft_graph.program import KeyPlan, Program, Programs, Role, Update
from weft_graph.statistics import keep_statistics
from weft_graph.types import TensorType

LOSS = "loss"
"""The name under which every program gives the loss."""


def convert(graph: Graph, *, loss: str, metrics: Mapping[str, str]) -> Programs:
    """The programs of a graph whose output `loss` is made small, and its keys in the order of the parameters.

    Both programs have the outputs `loss` and, by their names, `metrics`. Raises GraphRefusedError, or one of its kinds,
    where the graph is not legal, cannot be differentiated, or where loss or metrics are no scalar outputs of it.
    """
    check(graph)
    types = infer(graph)
    outputs = _outputs(graph, types, loss, metrics)
    order = without_dead_code(graph, outputs.values()).nodes
    urgency = priorities(order, [parameter.name for parameter in graph.parameters])
    return Programs(
        train=_train_program(graph, outputs, urgency),
        evaluate=_evaluate_program(graph, outputs, urgency),
        keys=tuple(
            KeyPlan(
                key=parameter.name,
                type=parameter.type,
                initializer=parameter.initializer,
                update=Update.RULE if parameter.trainable else Update.MEAN,
                priority=urgency[parameter.name],
            )
            for parameter in graph.parameters
        ),
    )


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
            raise ShapeError(f"{what} is {value!r}, which is {types[value]}; it must be a scalar", node=value)
    return MappingProxyType(outputs)


def _train_program(graph: Graph, outputs: Mapping[str, str], urgency: Mapping[str, int]) -> Program:
    """Forward, backward and communication. The passes before the cut keep the nodes' order, for their errors' pointers.

    A BatchNormalization that no output depends on sends no statistics: it would run for them alone.
    """
    statistics = keep_statistics(graph)
    derived = differentiate(statistics.graph, outputs[LOSS])
    alive = {name for node in without_dead_code(statistics.graph, outputs.values()).nodes for name in node.outputs}
    updates = {key: value for key, value in statistics.updates.items() if value in alive}
    sent = {**derived.gradients, **updates}
    cut = without_dead_code(derived.graph, (*outputs.values(), *sent.values()))
    nodes = insert_sends(insert_fetches(cut.nodes, urgency, outputs.values()), sent, urgency)
    return _program(Role.TRAIN, cut, nodes, outputs, derived.types)


def _evaluate_program(graph: Graph, outputs: Mapping[str, str], urgency: Mapping[str, int]) -> Program:
    cut = without_dead_code(to_inference(graph), outputs.values())
    return _program(Role.EVALUATE, cut, insert_fetches(cut.nodes, urgency, outputs.values()), outputs, infer(cut))


def _program(
    role: Role,
    graph: Graph,
    nodes: tuple[Node, ...],
    outputs: Mapping[str, str],
    types: Mapping[str, TensorType],
) -> Program:
    """A program whose types are those of its own values alone."""
    values = [
        *(input_.name for input_ in graph.inputs),
        *(constant.name for constant in graph.constants),
        *(name for node in nodes for name in node.outputs if name),
    ]
    return Program(
        role=role,
        inputs=graph.inputs,
        constants=graph.constants,
        nodes=nodes,
        outputs=MappingProxyType(dict(outputs)),
        types=MappingProxyType({name: types[name] for name in values}),
    )
