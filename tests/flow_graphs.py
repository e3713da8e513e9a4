"""Graphs with bodies that tests of several kinds start from, and what their derivatives give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sample_graphs import ZERO
from weft_graph.check import check
from weft_graph.differentiation import Differentiated, differentiate
from weft_graph.ir import AttributeValue, Constant, Graph, Input, Node, Parameter, Subgraph
from weft_graph.names import node_definitions
from weft_graph.program import LOSS_SCALE
from weft_graph.types import TensorType, array_type
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.run import run_nodes


def op(op_type: str, inputs: str, outputs: str, domain: str = "", **attributes: AttributeValue) -> Node:
    """A node named after its first output. Values are parted by blanks; `-` is one that is left out."""
    reads, makes = tuple("" if name == "-" else name for name in inputs.split()), tuple(outputs.split())
    return Node(op_type, f"n_{makes[0]}", reads, makes, attributes, domain)


def body(
    inputs: str, captured: str, outputs: str, *nodes: Node, constants: Mapping[str, Any] | None = None
) -> Subgraph:
    given = tuple(Constant(name, np.asarray(array)) for name, array in (constants or {}).items())
    return Subgraph(tuple(inputs.split()), tuple(captured.split()), nodes, tuple(outputs.split()), given)


def graph(
    nodes: Sequence[Node],
    parameters: Mapping[str, Array],
    inputs: Mapping[str, Array] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Graph:
    """A graph whose parameters and inputs are of the arrays' types, and whose output is `loss`."""
    return Graph(
        name="flow",
        inputs=tuple(Input(name, array_type(array)) for name, array in (inputs or {}).items()),
        parameters=tuple(
            Parameter(name, TensorType(array_type(array).dtype, array.shape), ZERO)
            for name, array in parameters.items()
        ),
        nodes=tuple(nodes),
        outputs=("loss",),
        constants=tuple(Constant(name, np.asarray(array)) for name, array in (constants or {}).items()),
    )


def derived(whole: Graph) -> Differentiated:
    """The checked graph with its backward nodes, all of whose nodes, also in bodies, have names of their own."""
    check(whole)
    result = differentiate(whole, "loss")
    names = [definition.name for definition in node_definitions(result.graph)]
    assert len(names) == len(set(names))
    return result


def computed(result: Differentiated, values: Mapping[str, Array], *, seed: int = 1) -> tuple[Array, dict[str, Array]]:
    """(the loss, each parameter's gradient), by the kernels."""
    table = {**values, LOSS_SCALE: np.ones((), result.types[LOSS_SCALE].dtype.numpy)}
    table.update((constant.name, constant.array) for constant in result.graph.constants)
    run_nodes(KernelContext("", seed=seed), result.graph.nodes, table, keep=["loss", *result.gradients.values()])
    return table["loss"], {name: table[value] for name, value in result.gradients.items()}


def differences(result: Differentiated, values: Mapping[str, Array], name: str, step: float = 1e-6) -> Array:
    """Central differences of the loss by a parameter's elements."""
    found = np.zeros_like(values[name])
    for index in np.ndindex(found.shape):
        sides = []
        for sign in (1, -1):
            moved = values[name].copy()
            moved[index] += sign * step
            sides.append(float(computed(result, {**values, name: moved})[0]))
        found[index] = (sides[0] - sides[1]) / (2 * step)
    return found
