"""The pass that makes a graph look at data without learning from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from weft_graph.ir import ONNX_DOMAIN, Graph, Node
from weft_graph.names import FreshNames, bodies_of, node_definitions
from weft_graph.passes.draft import Draft, Options


def inference_mode(draft: Draft, _options: Options) -> Draft:
    """Makes the graph one for evaluation: no Dropout, BatchNormalization by its running statistics, nothing is sent."""
    return replace(draft, statistics={}).having(to_inference(draft.graph))


def to_inference(graph: Graph) -> Graph:
    """The graph as evaluation runs it: BatchNormalization reads its running statistics, Dropout is the identity.

    Every value keeps its name and type. A running statistic that is asked for is the one that was read, and a mask of
    Dropout is true everywhere.
    """
    names = FreshNames(definition.name for definition in node_definitions(graph))
    return replace(graph, nodes=_rewritten(graph.nodes, names))


def _rewritten(nodes: Iterable[Node], names: FreshNames) -> tuple[Node, ...]:
    """The nodes, and those in their bodies."""
    made: list[Node] = []
    for node in nodes:
        rewrite = _REWRITES.get(node.op_type) if node.domain == ONNX_DOMAIN else None
        bodies = {name: replace(body, nodes=_rewritten(body.nodes, names)) for name, body in bodies_of(node).items()}
        whole = replace(node, attributes={**node.attributes, **bodies}) if bodies else node
        made.extend([whole] if rewrite is None else rewrite(whole, names))
    return tuple(made)


def _batch_normalization(node: Node, names: FreshNames) -> list[Node]:
    if node.attributes.get("training_mode", 0) == 0:
        return [node]
    evaluated = replace(node, outputs=node.outputs[:1], attributes={**node.attributes, "training_mode": 0})
    statistics = [
        Node("Identity", names.fresh(f"weft.statistic/{node.name}"), (read,), (written,))
        for read, written in zip(node.inputs[3:], node.outputs[1:], strict=False)
        if written
    ]
    return [evaluated, *statistics]


def _dropout(node: Node, _names: FreshNames) -> list[Node]:
    """Without the input `training_mode` Dropout passes its input on; only a mask that is named keeps the operator."""
    data = node.inputs[:1]
    if any(node.outputs[1:]):
        return [replace(node, inputs=data)]
    return [Node("Identity", node.name, data, node.outputs[:1])]


_REWRITES: Final[Mapping[str, Callable[[Node, FreshNames], list[Node]]]] = {
    "BatchNormalization": _batch_normalization,
    "Dropout": _dropout,
}
