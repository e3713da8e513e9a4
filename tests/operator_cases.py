"""Cases of operators for other array modules than NumPy: ONNX's own, and every node of the gradients' graphs."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradient_case import GradientCase
from gradient_cases import gradient_cases
from onnx_node_cases import node_cases
from weft_graph.differentiation import differentiate
from weft_graph.ir import Constant, Graph, Initializer, Input, Node, Parameter
from weft_graph.program import LOSS_SCALE
from weft_graph.topological import topological_order
from weft_graph.types import array_type
from weft_kernels.kernel import KernelContext
from weft_kernels.run import run_node, run_nodes

BACKWARD_CASES = {f"{case.op_type}-{case.name}": case for case in gradient_cases()}
ELEMENT_TYPES = {"BOOL", "FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE"} | {
    f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)
}
NODE_NAMES = sorted(
    name for name, case in node_cases().items() if {*case.element_types} <= ELEMENT_TYPES and not name.endswith("_old")
)


def differentiated_nodes(case: GradientCase, dtype: str) -> tuple[list[Node], dict[str, Any]]:
    """(the nodes of a loss over the case's node and of its gradients, every value as NumPy's bodies make it)."""
    graph, arrays = weighed(case, dtype)
    result = differentiate(graph, "loss")
    arrays.update((constant.name, constant.array) for constant in result.graph.constants)
    arrays[LOSS_SCALE] = np.array(0.5, dtype=result.types[LOSS_SCALE].dtype.numpy)
    nodes = list(topological_order(result.graph.nodes))
    values = dict(arrays)
    run_nodes(KernelContext(""), nodes, values, keep=[*arrays, *(n for node in nodes for n in node.outputs if n)])
    assert result.gradients
    return nodes, values


def weighed(case: GradientCase, dtype: str) -> tuple[Graph, dict[str, Any]]:
    """A loss that is the sum of the node's outputs, each element with a weight of its own; and the node's inputs."""
    arrays = {
        f"in{place}": array.astype(dtype) if array.dtype == np.float64 else array
        for place, array in enumerate(case.inputs)
        if array is not None
    }
    node = Node(
        case.op_type,
        "node",
        tuple("" if array is None else f"in{place}" for place, array in enumerate(case.inputs)),
        tuple(f"out{place}" for place in range(case.outputs)),
        case.attributes,
        case.domain,
    )
    made = run_node(KernelContext("node"), node, [arrays.get(name) for name in node.inputs])
    nodes, terms = [node], []
    for place, array in enumerate(made):
        weight = np.random.default_rng(place).uniform(0.5, 1, array.shape).astype(array.dtype)
        arrays[f"weight{place}"] = weight
        nodes += [
            Node("Mul", f"weigh{place}", (f"out{place}", f"weight{place}"), (f"weighed{place}",)),
            Node("ReduceSum", f"sum{place}", (f"weighed{place}",), (f"term{place}",), {"keepdims": 0}),
        ]
        terms.append(f"term{place}")
    if case.flat:
        nodes += [
            Node("ReduceSum", f"pass{place}", (f"in{place}",), (f"passed{place}",), {"keepdims": 0})
            for place in case.differentiated
        ]
        terms += [f"passed{place}" for place in case.differentiated]
    nodes.append(Node("Sum", "total", tuple(terms), ("loss",)))
    trained = {f"in{place}" for place in case.differentiated}
    constants = {f"in{place}" for place in case.known}
    graph = Graph(
        name="case",
        inputs=tuple(Input(n, array_type(a)) for n, a in arrays.items() if n not in trained | constants),
        parameters=tuple(
            Parameter(n, array_type(arrays[n]), Initializer("ConstantOfShape", {"value": 0.0})) for n in sorted(trained)
        ),
        nodes=tuple(nodes),
        outputs=("loss",),
        constants=tuple(Constant(n, arrays[n]) for n in sorted(constants)),
    )
    return graph, arrays
