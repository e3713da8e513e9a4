"""What a model is made of, as text: inputs, outputs, parameters, constants, operators, and what cannot train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from weft_graph.infer import infer
from weft_graph.ir import Graph, Node
from weft_graph.names import all_nodes
from weft_graph.schema import schema_of
from weft_graph.shapes.gradients import flat
from weft_graph.topological import topological_order
from weft_graph.types import TensorType

_MOST = 20
"""Lines of one kind; what is beyond them is counted."""


def report(
    graph: Graph, warnings: Sequence[str] = (), reasons: Mapping[str, str] = MappingProxyType({}), proof: str = ""
) -> str:
    """A line for each thing, largest parameters first. `reasons` say why something does not train."""
    return "\n".join(_lines(graph, warnings, reasons, proof))


def _lines(graph: Graph, warnings: Sequence[str], reasons: Mapping[str, str], proof: str) -> Iterator[str]:
    def line(name: str, type_: object) -> str:
        return f"{name}  {type_}  ({reasons[name]})" if name in reasons else f"{name}  {type_}"

    types = infer(graph)
    yield f"model {graph.name}: {len(graph.nodes)} nodes"
    yield from _section("inputs", [f"{input_.name}  {input_.type}" for input_ in graph.inputs])
    yield from _section("outputs", [f"{name}  {types[name]}" for name in graph.outputs])
    largest = sorted(graph.parameters, key=lambda each: -each.type.size)
    total = sum(each.type.size for each in largest)
    trained = [line(each.name, each.type) for each in largest if each.trainable]
    yield from _section(f"parameters that train ({len(trained)} of {len(largest)}, {total:,} numbers in all)", trained)
    yield from _section("parameters that stay", [line(each.name, each.type) for each in largest if not each.trainable])
    constants = sorted(graph.constants, key=lambda each: -each.array.nbytes)
    shown = [line(each.name, f"{each.array.dtype}{list(each.array.shape)}") for each in constants if each.array.ndim]
    yield from _section(f"constants ({len(constants)}; single numbers are not listed)", shown)
    counts = Counter(_word(node) for node, _ in all_nodes(graph.nodes))
    yield from _section("operators", [f"{name}  {count}" for name, count in sorted(counts.items())], most=len(counts))
    yield from _section("what cannot train", list(untrained(graph)))
    yield from _section("what depends on the number of workers", list(per_worker(graph)))
    yield from _section("compared with PyTorch", [proof] if proof else [])
    yield from _section("warnings", list(warnings), most=len(warnings))


def document(graph: Graph, warnings: Sequence[str] = ()) -> dict[str, Any]:
    """What `report` says, for scripts: shapes are lists of numbers and dimensions' names."""
    types = infer(graph)
    counts = Counter(_word(node) for node, _ in all_nodes(graph.nodes))

    def named(name: str, type_: TensorType) -> dict[str, Any]:
        shape = [dim if isinstance(dim, int) else str(dim) for dim in type_.shape]
        return {"name": name, "dtype": type_.dtype.value, "shape": shape}

    return {
        "name": graph.name,
        "inputs": [named(each.name, each.type) for each in graph.inputs],
        "outputs": [named(name, types[name]) for name in graph.outputs],
        "parameters": [{**named(each.name, each.type), "trainable": each.trainable} for each in graph.parameters],
        "operators": dict(sorted(counts.items())),
        "untrained": list(untrained(graph)),
        "warnings": list(warnings),
    }


def per_worker(graph: Graph) -> Iterator[str]:
    """A sentence about BatchNormalization, where there is one that trains."""
    count = sum(
        node.op_type == "BatchNormalization" and bool(node.attributes.get("training_mode"))
        for node, _ in all_nodes(graph.nodes)
    )
    if count:
        yield (
            f"BatchNormalization ({count} nodes): each worker takes mean and variance of its own part of a batch, as "
            "DistributedDataParallel does, so other numbers of workers train other weights; running statistics are the "
            "workers' mean"
        )


def paths(graph: Graph) -> set[str]:
    """Parameters that are to train, and lead to an output through operators with a gradient."""
    found, _ = _paths(graph)
    return {parameter.name for parameter in graph.parameters if parameter.trainable and parameter.name in found}


def _paths(graph: Graph) -> tuple[set[str], dict[str, Node]]:
    """(values that lead to an output so, the node that ends the gradient of values which do not)."""
    found = set(graph.outputs)
    ends: dict[str, Node] = {}
    for node in reversed(topological_order(graph.nodes)):
        if not any(output in found or output in ends for output in node.outputs):
            continue
        if any(output in found for output in node.outputs) and schema_of(node).gradient not in (None, flat):
            found.update(name for name in node.inputs if name)
            continue
        # Behind an operator that ends gradients, what is nearest to the outputs is what to change.
        nearest = next((ends[output] for output in node.outputs if output in ends), node)
        ends.update((name, nearest) for name in node.inputs if name)
    return found, ends


def untrained(graph: Graph) -> Iterator[str]:
    """A sentence for each parameter that is to train and leads to no output through operators with a gradient."""
    found, ends = _paths(graph)
    for parameter in graph.parameters:
        if parameter.trainable and parameter.name not in found:
            end = ends.get(parameter.name)
            why = "nothing reads it" if end is None else f"node {end.name!r} ({end.op_type}) has none to pass on"
            yield f"parameter {parameter.name!r} gets no gradient: {why}"


def _section(title: str, lines: Sequence[str], most: int = _MOST) -> Iterator[str]:
    if not lines:
        return
    yield title
    yield from (f"  {line}" for line in lines[:most])
    if len(lines) > most:
        yield f"  and {len(lines) - most} more"


def _word(node: Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type
