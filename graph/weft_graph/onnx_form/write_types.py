"""Types of all values of a graph, those inside its bodies too, which runtimes want to be told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft_graph.infer import Inference
from weft_graph.ir import Constant, Graph, Subgraph
from weft_graph.onnx_form.imported import Array
from weft_graph.topological import topological_order
from weft_graph.types import TensorType


@dataclass(frozen=True, slots=True)
class Known:
    """Types of the graph's values by name, and of each body's values, by the identity of the body."""

    types: Mapping[str, TensorType]
    bodies: Mapping[int, Mapping[str, TensorType]]


def infer_with_bodies(graph: Graph) -> Known:
    """Of a graph that has passed `check`. Raises ShapeError or DTypeError."""
    given = {input_.name: input_.type for input_ in graph.inputs}
    given.update((parameter.name, parameter.type) for parameter in graph.parameters)
    bodies: dict[int, Mapping[str, TensorType]] = {}
    inference = _Remembering(given, graph.constants, bodies)
    for node in topological_order(graph.nodes):
        inference.add(node)
    return Known(inference.types, bodies)


class _Remembering(Inference):
    """Keeps what it finds out about bodies. Of one that is looked at again, as a loop's is, the last time counts."""

    def __init__(
        self,
        types: Mapping[str, TensorType],
        constants: Iterable[Constant],
        bodies: dict[int, Mapping[str, TensorType]],
    ) -> None:
        super().__init__(types, constants)
        self._bodies = bodies

    def body(
        self, subgraph: Subgraph, types: Sequence[TensorType], pointer: str, known: Mapping[str, Array]
    ) -> tuple[TensorType, ...]:
        names = (*subgraph.inputs, *subgraph.captured)
        inner = _Remembering(dict(zip(names, types, strict=True)), subgraph.constants, self._bodies)
        inner.known.update(known)
        for index, node in enumerate(subgraph.nodes):
            inner.add(node, f"{pointer}/nodes/{index}" if pointer else "")
        self._bodies[id(subgraph)] = inner.types
        return tuple(inner.types[name] for name in subgraph.outputs)
