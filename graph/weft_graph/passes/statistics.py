"""The pass that finds where running statistics get their new values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from weft_graph.errors import GraphRefusedError
from weft_graph.ir import ONNX_DOMAIN, Graph, Node, Parameter
from weft_graph.names import FreshNames, all_nodes, value_definitions
from weft_graph.passes.draft import Draft
from weft_graph.passes.options import Options

_STATISTICS = ((3, 1), (4, 2))
"""BatchNormalization's input that is a running statistic, and the output that is its new value."""


@dataclass(frozen=True, slots=True)
class RunningStatistics:
    """A graph whose BatchNormalization nodes name their new statistics, and for each parameter the new value's name."""

    graph: Graph
    updates: Mapping[str, str]


def statistics(draft: Draft, _options: Options) -> Draft:
    """The draft whose running statistics have new values."""
    kept = keep_statistics(draft.graph, source=draft.source)
    return replace(draft, statistics=kept.updates).having(kept.graph) if kept.updates else draft


def keep_statistics(graph: Graph, *, source: Graph | None = None) -> RunningStatistics:
    """Makes each BatchNormalization in training mode name its running statistics, which its parameters are to get.

    Errors point into `source`, the user's graph; without it that is `graph` itself.

    Raises GraphRefusedError where a statistic is no parameter, is a trainable one, or both mean and variance of a node,
    and where a body would have one.
    """
    parameters = {parameter.name: parameter for parameter in graph.parameters}
    names = FreshNames(definition.name for definition in value_definitions(graph))
    updates: dict[str, str] = {}
    writers: dict[str, str] = {}
    nodes: list[Node] = []
    places = {node.name: index for index, node in enumerate((source or graph).nodes)}
    _check_bodies((source or graph).nodes)
    for node in graph.nodes:
        if not _is_training(node):
            nodes.append(node)
            continue
        named = _naming_statistics(node, names)
        for read, written in _STATISTICS:
            key = node.inputs[read]
            _check_statistic(
                node, f"/nodes/{places[node.name]}/inputs/{read}", key, parameters.get(key), writers.get(key)
            )
            # A module that runs twice in a step updates its statistics twice, one after the other.
            named = replace(named, inputs=(*named.inputs[:read], updates.get(key, key), *named.inputs[read + 1 :]))
            updates[key] = named.outputs[written]
            writers[key] = node.name
        nodes.append(named)
    return RunningStatistics(replace(graph, nodes=tuple(nodes)), MappingProxyType(updates))


def _check_bodies(nodes: Iterable[Node]) -> None:
    """What a branch or a turn of a loop learns would have to leave the body, as often as that runs."""
    top = {id(node) for node in nodes}
    for node, pointer in all_nodes(nodes):
        if id(node) not in top and _is_training(node):
            raise GraphRefusedError(
                f"node {node.name!r} (BatchNormalization) is in a body, where it cannot keep running statistics; set "
                "its training_mode to 0, or move it out of the body",
                pointer=pointer,
                node=node.name,
            )


def _is_training(node: Node) -> bool:
    is_normalization = node.domain == ONNX_DOMAIN and node.op_type == "BatchNormalization"
    return is_normalization and node.attributes.get("training_mode", 0) != 0


def _naming_statistics(node: Node, names: FreshNames) -> Node:
    given = (*node.outputs, "", "")[:3]
    words = ("", "running_mean", "running_var")
    outputs = (name or names.fresh(f"weft.{word}/{node.name}") for name, word in zip(given, words, strict=True))
    return replace(node, outputs=tuple(outputs))


def _check_statistic(node: Node, pointer: str, key: str, parameter: Parameter | None, writer: str | None) -> None:
    if parameter is None:
        problem = "which is no parameter, so that its new value would be lost"
    elif parameter.trainable:
        problem = "which is a trainable parameter, and a running statistic has no gradient; make it not trainable"
    elif writer == node.name:
        problem = "which gets its new value from its variance already"
    else:
        return
    message = f"node {node.name!r} (BatchNormalization) keeps a running statistic in {key!r}, {problem}"
    raise GraphRefusedError(message, pointer=pointer, node=node.name)
