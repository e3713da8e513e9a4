"""Gradients of every operator that has one, through the differentiation itself.

Against JAX's reverse mode in float64, over element types and memory layouts, and against central differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from case_names import by_operator, named
from gradient_case import Array, GradientCase
from jax_gradients import AGAIN, CASES, cotangents_for, gradients_by_jax, held_gradients, held_sources, sources
from weft_graph.differentiation import differentiate
from weft_graph.ir import Constant, Graph, Initializer, Input, Node, Parameter, Subgraph
from weft_graph.program import LOSS_SCALE
from weft_graph.schema import schemas
from weft_graph.topological import topological_order
from weft_graph.types import array_type
from weft_kernels.kernel import KernelContext
from weft_kernels.onnx_runtime.lowering import DIRECT, LOWER, Lowered, lowered
from weft_kernels.onnx_runtime.session import Session
from weft_kernels.run import run_node, run_nodes

TOLERANCE = {"float64": (1e-9, 1e-11), "float32": (2e-4, 2e-5), "float16": (3e-2, 3e-2)}
STEP = 1e-5
SCALE = 0.5


def _reference(name: str) -> tuple[list[Array], list[Array]]:
    """(cotangents of the outputs, JAX's gradients of the differentiated inputs), all float64."""
    case = CASES[name]
    outputs = _outputs(case, _arrays(case, [], "float64", "contiguous"))
    return _cotangents(case, outputs), [gradient * SCALE for gradient in held_gradients(name)]


def _outputs(case: GradientCase, arrays: Mapping[str, Array]) -> tuple[Array, ...]:
    inputs = tuple("" if array is None else f"in{place}" for place, array in enumerate(case.inputs))
    outputs = tuple(f"out{place}" for place in range(case.outputs))
    node = Node(case.op_type, "node", inputs, outputs, case.attributes, case.domain)
    return tuple(run_node(KernelContext(""), node, [arrays[each] if each else None for each in inputs]))


def _cotangents(case: GradientCase, outputs: tuple[Array, ...]) -> list[Array]:
    """Of the outputs, and of the inputs where these are summed up beside them."""
    passed = [np.asarray(case.inputs[place]) for place in case.differentiated if case.flat]
    return cotangents_for(array.shape for array in (*outputs, *passed))


def _graph(case: GradientCase, arrays: Mapping[str, Array], cotangents: list[Array]) -> Graph:
    """The case's node, whose outputs, each times its cotangent, are summed up to `loss`."""
    derived = {f"in{place}" for place in case.differentiated}
    inputs = tuple("" if array is None else f"in{place}" for place, array in enumerate(case.inputs))
    outputs = tuple(f"out{place}" for place in range(case.outputs))
    nodes = [Node(case.op_type, "node", inputs, outputs, case.attributes, case.domain)]
    terms = []
    weighed = (*outputs, *(name for name in inputs if name in derived)) if case.flat else outputs
    for place, output in enumerate(weighed):
        nodes.append(Node("Mul", f"weigh{place}", (output, f"cotangent{place}"), (f"weighed{place}",)))
        nodes.append(Node("ReduceSum", f"sum{place}", (f"weighed{place}",), (f"term{place}",), {"keepdims": 0}))
        terms.append(f"term{place}")
    while len(terms) > 1:
        nodes.append(Node("Add", f"add{len(terms)}", (terms[0], terms[1]), (f"total{len(terms)}",)))
        terms = [f"total{len(terms)}", *terms[2:]]
    nodes.append(Node("Identity", "name_loss", (terms[0],), ("loss",)))
    known = {f"in{place}" for place in case.known}
    constants = [Constant(name, array) for name, array in arrays.items() if name in known]
    fixed = {constant.name for constant in constants}
    return Graph(
        name="case",
        inputs=tuple(Input(n, array_type(a)) for n, a in arrays.items() if n not in derived and n not in fixed),
        parameters=tuple(
            Parameter(name, array_type(arrays[name]), Initializer("ConstantOfShape", {"value": 0.0}))
            for name in sorted(derived)
        ),
        nodes=tuple(nodes),
        outputs=("loss",),
        constants=tuple(constants),
    )


def _arrays(case: GradientCase, cotangents: list[Array], dtype: str, layout: str) -> dict[str, Array]:
    named = {f"in{place}": array for place, array in enumerate(case.inputs) if array is not None}
    named.update((f"cotangent{place}", array) for place, array in enumerate(cotangents))
    if case.op_type == "Cast":
        return {
            name: array if name.startswith("cotangent") else _laid_out(array.astype(dtype), layout)
            for name, array in named.items()
        }
    return {
        name: _laid_out(array.astype(dtype) if array.dtype == np.float64 else array, layout)
        for name, array in named.items()
    }


def _laid_out(array: Array, layout: str) -> Array:
    if layout == "fortran":
        return np.array(array, order="F")
    if layout == "strided" and array.ndim:
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), dtype=array.dtype)[..., ::2][::-1]
        wide[...] = array
        return wide
    return array


def _gradients(case: GradientCase, arrays: Mapping[str, Array], cotangents: list[Array]) -> dict[str, Array]:
    """Runs the differentiated graph; every value must be of the type that was inferred, and no input written."""
    graph = _graph(case, arrays, cotangents)
    result = differentiate(graph, "loss")
    values = dict(arrays)
    values.update((constant.name, constant.array) for constant in result.graph.constants)
    values[LOSS_SCALE] = np.array(SCALE, dtype=result.types[LOSS_SCALE].dtype.numpy)
    before = {name: array.copy() for name, array in values.items()}
    nodes = topological_order(result.graph.nodes)
    made = {name for node in nodes for name in node.outputs if name}
    run_nodes(KernelContext(""), nodes, values, keep=[*before, *made])
    for name, array in values.items():
        assert isinstance(array, np.ndarray)
        assert result.types[name].agrees_with(array_type(array)), name
    for name, array in before.items():
        np.testing.assert_array_equal(values[name], array, err_msg=f"{name} was written")
    return {name: values[gradient] for name, gradient in result.gradients.items()}


def test_the_gradients_that_are_held_are_jaxs_and_of_these_cases() -> None:
    assert held_sources() == sources(), f"a case has changed; {AGAIN}"
    for op_type in ("Gemm", "LayerNormalization", "Relu"):
        for name, gradients in gradients_by_jax(op_type).items():
            for held, again in zip(held_gradients(name), gradients, strict=True):
                np.testing.assert_allclose(held, again, rtol=1e-12, atol=1e-13, err_msg=name)


VARIANTS = [("float64", "contiguous"), ("float32", "strided"), ("float16", "fortran")]


@pytest.mark.parametrize(("dtype", "layout"), VARIANTS)
@pytest.mark.parametrize("op_type", by_operator(CASES))
def test_gradient_is_that_of_jax(op_type: str, dtype: str, layout: str) -> None:
    for name in by_operator(CASES)[op_type]:
        with named(name):
            _check_against_jax(name, dtype, layout)


def _check_against_jax(name: str, dtype: str, layout: str) -> None:
    case = CASES[name]
    cotangents, expected = _reference(name)
    arrays = _arrays(case, cotangents, dtype, layout)
    gradients = _gradients(case, arrays, cotangents)
    rtol, atol = TOLERANCE[dtype]
    assert len(expected) == len(case.differentiated) > 0
    for place, reference in zip(case.differentiated, expected, strict=True):
        gradient = gradients[f"in{place}"]
        assert gradient.dtype == arrays[f"in{place}"].dtype
        scale = max(1.0, float(np.abs(reference).max(initial=0.0)))
        np.testing.assert_allclose(gradient, reference, rtol=rtol, atol=atol * scale, err_msg=f"input {place}")


SMOOTH = {name: case for name, case in CASES.items() if case.smooth}


@pytest.mark.parametrize("op_type", by_operator(SMOOTH))
def test_gradient_is_the_central_difference(op_type: str) -> None:
    for name in by_operator(SMOOTH)[op_type]:
        with named(name):
            _check_against_differences(name)


def _check_against_differences(name: str) -> None:
    case = CASES[name]
    cotangents, _ = _reference(name)
    arrays = _arrays(case, cotangents, "float64", "contiguous")
    gradients = _gradients(case, arrays, cotangents)
    nodes = topological_order(_graph(case, arrays, cotangents).nodes)

    def loss(place: str, index: tuple[int, ...], step: float) -> float:
        values = dict(arrays)
        values[place] = arrays[place].copy()
        values[place][index] += step
        run_nodes(KernelContext(""), nodes, values, keep=["loss"])
        return float(values["loss"])

    for place in (f"in{place}" for place in case.differentiated):
        difference = np.zeros_like(arrays[place])
        for index in np.ndindex(arrays[place].shape):
            difference[index] = (loss(place, index, STEP) - loss(place, index, -STEP)) / (2 * STEP)
        np.testing.assert_allclose(gradients[place], difference * SCALE, rtol=1e-5, atol=1e-7, err_msg=place)


def _nodes_and_values(name: str) -> tuple[tuple[Node, ...], set[str], dict[str, Array]]:
    """(the nodes of a case and its gradient, its constants, all values by the bodies), float32."""
    case = CASES[name]
    cotangents = _cotangents(case, _outputs(case, _arrays(case, [], "float32", "contiguous")))
    arrays = _arrays(case, cotangents, "float32", "contiguous")
    result = differentiate(_graph(case, arrays, cotangents), "loss")
    constants = {constant.name: constant.array for constant in result.graph.constants}
    values = {**arrays, **constants}
    values[LOSS_SCALE] = np.array(SCALE, dtype=result.types[LOSS_SCALE].dtype.numpy)
    nodes = tuple(topological_order(result.graph.nodes))
    keep = [*values, *(each for node in nodes for each in node.outputs if each)]
    run_nodes(KernelContext(""), nodes, values, keep=keep)
    return nodes, set(constants), values


def _what_a_session_is_of(node: Node, known: set[str], values: Mapping[str, Array]) -> str:
    """The operator, its attributes, and its inputs' element types, shapes and, where they are constants, numbers."""
    inputs = [values[each] if each else None for each in node.inputs]
    told = [array is not None and (array.dtype.str, array.shape) for array in inputs]
    constants = [values[each].tobytes() for each in node.inputs if each in known]
    attributes = [(key, getattr(value, "tobytes", value.__repr__)()) for key, value in sorted(node.attributes.items())]
    return repr((node.domain, node.op_type, [*map(bool, node.outputs)], told, constants, attributes))


def test_onnxruntime_computes_what_the_bodies_do() -> None:
    """Every node that can be lowered, of every case, and of nodes that are alike in all but numbers the first; together
    these are all operators that a session runs."""
    computed, met = set(), set()
    for name, case in CASES.items():
        if case.op_type == "Cast":
            continue
        nodes, known, values = _nodes_and_values(name)
        types = {value: array_type(array) for value, array in values.items()}
        for node in nodes:
            of = _what_a_session_is_of(node, known, values)
            if of in met:
                continue
            met.add(of)
            into = Lowered(types, threads=1)
            if not lowered(node, into):
                continue
            made = {each for one in into.nodes for each in one.outputs} | {each.name for each in into.constants}
            read = {each for one in into.nodes for each in one.inputs if each} - made
            constants = tuple(Constant(each, values[each]) for each in sorted(read & known))
            inputs = tuple(sorted(read - known))
            outputs = tuple(each for each in node.outputs if each)
            if not inputs:
                continue
            session = Session(Subgraph(inputs, (), (node,), outputs, constants), types, threads=1)
            found = session(KernelContext(node.name), [values[each] for each in inputs], {})
            computed.add(node.op_type)
            for output, array in zip(outputs, found, strict=True):
                expected = values[output]
                assert (array.dtype, array.shape) == (expected.dtype, expected.shape), (name, node)
                scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
                np.testing.assert_allclose(array, expected, rtol=2e-4, atol=2e-5 * scale, err_msg=f"{name}: {node}")
    assert sorted((DIRECT | LOWER.keys()) - computed) == [*WITHOUT_GRADIENT]


WITHOUT_GRADIENT = ("Fused", "GreaterOrEqual", "Not")
"""What a session runs and no case has: two operators without a gradient, and what a pass makes."""


def test_inputs_that_are_left_out_by_name_change_nothing() -> None:
    """`Op(x, , )` is `Op(x)`: a gradient is given for every input that the node has, also for one that is ''."""
    longer = 0
    for name, case in CASES.items():
        formals = schemas()[case.domain, case.op_type].inputs
        room = len(formals) - len(case.inputs)
        if room <= 0 or formals[-1].variadic:
            continue
        cotangents, _ = _reference(name)
        arrays = _arrays(case, cotangents, "float32", "contiguous")
        short = differentiate(_graph(case, arrays, cotangents), "loss")
        padded = replace(case, inputs=(*case.inputs, *(None,) * room))
        long = differentiate(_graph(padded, arrays, cotangents), "loss")
        assert [node.op_type for node in long.graph.nodes] == [node.op_type for node in short.graph.nodes], name
        longer += 1
    assert longer > 10


def test_every_operator_with_a_gradient_has_a_case() -> None:
    with_gradient = {schema.op_type for schema in schemas().values() if schema.gradient is not None}
    assert with_gradient == {case.op_type for case in CASES.values()}
