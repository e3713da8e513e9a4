"""Reverse-mode differentiation of a graph: the backward nodes of a loss, made by walking the schemas' gradients.

Of the values, only those take part that lead from a trainable parameter to the loss through floats. The start is the
input `weft.loss_scale` in the place of 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from weft_graph.differentiation.walk import Backward
from weft_graph.errors import DTypeError, GraphRefusedError, ShapeError
from weft_graph.infer import Inference
from weft_graph.ir import Graph, Input, Node
from weft_graph.names import Names, all_nodes
from weft_graph.program import LOSS_SCALE
from weft_graph.slices import backward_slice
from weft_graph.topological import topological_order
from weft_graph.types import TensorType


@dataclass(frozen=True, slots=True)
class Differentiated:
    """A graph with its backward nodes, in runnable order, and the name of each trainable parameter's gradient."""

    graph: Graph
    gradients: Mapping[str, str]
    types: Mapping[str, TensorType]


def differentiate(graph: Graph, loss: str, *, source: Graph | None = None) -> Differentiated:
    """Adds to a checked graph the nodes that compute `weft.loss_scale` times the gradient of the value `loss`.

    Errors name and point at what is in `source`, the user's graph, whose parameters stand in the same order; without it
    that is `graph` itself.

    Raises NoGradientError, naming the node and the parameter, where an operator on the way has no gradient, and
    GraphRefusedError where the loss is no float scalar, where it does not depend on a trainable parameter, or where
    there is no trainable parameter.
    """
    source = source or graph
    trained = {
        parameter.name: given.name
        for parameter, given in zip(graph.parameters, source.parameters, strict=True)
        if parameter.trainable
    }
    walk = _walk(graph, source, trained)
    types = walk.inference.types
    _check_loss(loss, types.get(loss))
    if not trained:
        raise GraphRefusedError(f"graph {graph.name!r} has no trainable parameter: there is nothing to train")
    _check_parameters(graph, source, loss, backward_slice(walk.forward, [loss])[1], "does not depend on")
    walk.run([(loss, LOSS_SCALE)])
    _check_parameters(graph, source, loss, walk.gradients, "has no path with a gradient to")
    derived = replace(
        graph,
        inputs=(*graph.inputs, Input(LOSS_SCALE, types[LOSS_SCALE])),
        constants=(*graph.constants, *walk.constants.values()),
        nodes=walk.nodes,
    )
    gradients = {name: walk.gradients[name] for name in trained}
    return Differentiated(derived, MappingProxyType(gradients), MappingProxyType(types))


def _walk(graph: Graph, source: Graph, trained: Mapping[str, str]) -> Backward:
    given = {input_.name: input_.type for input_ in graph.inputs}
    given.update((parameter.name, parameter.type) for parameter in graph.parameters)

    def locate(node: Node) -> str:
        # A branch that is always taken stands in its node's place, but in the user's graph it is a body.
        return next((place for theirs, place in all_nodes(source.nodes) if theirs.name == node.name), "")

    inference = Inference(given, graph.constants)
    return Backward(
        topological_order(graph.nodes), inference, Names.of(graph, LOSS_SCALE), locate=locate, sources=trained
    )


def _check_loss(loss: str, type_: TensorType | None) -> None:
    if type_ is None:
        raise GraphRefusedError(f"loss {loss!r} is a value that nothing defines", node=loss)
    if not type_.dtype.is_float:
        raise DTypeError(f"loss {loss!r} is {type_}; a loss is a float scalar", node=loss)
    if type_.rank:
        raise ShapeError(f"loss {loss!r} is {type_}; a loss is a float scalar", node=loss)


def _check_parameters(graph: Graph, source: Graph, loss: str, reached: Collection[str], relation: str) -> None:
    for index, (parameter, given) in enumerate(zip(graph.parameters, source.parameters, strict=True)):
        if parameter.trainable and parameter.name not in reached:
            raise GraphRefusedError(
                f"loss {loss!r} {relation} parameter {given.name!r}, which would never be trained; "
                "remove it or make it not trainable",
                pointer=f"/parameters/{index}",
                node=given.name,
            )
