"""Every operator, forward and backward, over arrays that refuse what CuPy refuses: once on the module alone, once with
this project's CUDA kernels, run on the CPU. What the bodies give NumPy is compared with JAX and ONNX elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import cuda_on_host
from gradient_case import GradientCase
from gradient_cases import gradient_cases
from onnx_node_cases import node_cases
from weft_graph.differentiate import differentiate
from weft_graph.ir import Constant, Graph, Initializer, Input, Node, Parameter
from weft_graph.program import LOSS_SCALE
from weft_graph.topological import topological_order
from weft_graph.types import array_type
from weft_kernels.kernel import KernelContext
from weft_kernels.run import run_node, run_nodes

pytest.importorskip("cupy", reason="the stand-in has CuPy's names; weft[cuda-compile] installs it")
import strict_arrays
from strict_arrays import HostMixError, StrictArray, own_kernels, strict, to_device, to_host

CASES = {f"{case.op_type}-{case.name}": case for case in gradient_cases()}
NODES = sorted(
    name
    for name, case in node_cases().items()
    if {*case.element_types} <= {"BOOL", "UINT8", "INT8", "INT32", "INT64", "FLOAT16", "FLOAT", "DOUBLE"}
    and not name.endswith("_old")
)
TOLERANCE = {"float16": (2e-2, 2e-2), "float32": (1e-5, 1e-6), "float64": (1e-12, 1e-13)}
WITH_KERNELS = {"Conv", "MaxPool", "SoftmaxCrossEntropyLoss", "Dropout", "Gather", "Embedding"}
"""Operators whose bodies, or whose gradients' bodies, start kernels of this project."""
ONLY_WITH_KERNELS = {"Gather", "Embedding"}
"""Those that no array module sums in a fixed order."""

Mode = str


def _runs(ops: dict[str, str], dtypes: tuple[str, ...]) -> list[Any]:
    """(case, element type, mode) of each run: every case on the module, those with kernels on kernels too."""
    runs = []
    for name, op_type in ops.items():
        if op_type not in ONLY_WITH_KERNELS:
            runs.append((name, "float32", "module"))
        if op_type in WITH_KERNELS:
            runs += [(name, dtype, "kernels") for dtype in dtypes]
    return [pytest.param(*run, id="-".join(run)) for run in runs]


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    reason = cuda_on_host.why_not() if request.param == "kernels" else None
    if reason:
        pytest.skip(f"CUDA kernels cannot be run on this CPU: {reason}")
    with own_kernels() if request.param == "kernels" else nullcontext():
        yield request.param


def _same(given: Any, expected: Any, what: str) -> None:
    assert isinstance(given, StrictArray), what
    host = to_host(given)
    assert (host.dtype, host.shape) == (expected.dtype, expected.shape), what
    rtol, atol = TOLERANCE.get(expected.dtype.name, (0, 0))
    scale = float(np.nanmax(np.abs(np.where(np.isfinite(expected), expected, 0)), initial=1.0))
    np.testing.assert_allclose(host, expected, rtol=rtol, atol=atol * scale, err_msg=what)


FORWARD = _runs({name: node_cases()[name].op_type for name in NODES}, ("float32",))
BACKWARD = _runs({name: case.op_type for name, case in CASES.items()}, ("float16", "float32", "float64"))


@pytest.mark.parametrize(("name", "dtype", "mode"), FORWARD, indirect=["mode"])
def test_forward_is_that_of_numpy(name: str, dtype: str, mode: str) -> None:
    case = node_cases()[name]
    inputs = [case.tensors[value] if value else None for value in case.node.inputs]
    expected = run_node(KernelContext(""), case.node, inputs)
    device = [None if array is None else to_device(array) for array in inputs]
    outputs = run_node(KernelContext("", xp=strict), case.node, device)
    assert len(outputs) == len(expected)
    for place, (array, wanted) in enumerate(zip(outputs, expected, strict=True)):
        _same(array, wanted, f"output {place}")


def _weighed(case: GradientCase, dtype: str) -> tuple[Graph, dict[str, Any]]:
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
    constants = {name for name, array in arrays.items() if array.dtype == np.int64 and name not in trained}
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


@pytest.mark.parametrize(("name", "dtype", "mode"), BACKWARD, indirect=["mode"])
def test_backward_is_that_of_numpy(name: str, dtype: str, mode: str) -> None:
    case = CASES[name]
    graph, arrays = _weighed(case, dtype)
    result = differentiate(graph, "loss")
    arrays.update((constant.name, constant.array) for constant in result.graph.constants)
    arrays[LOSS_SCALE] = np.array(0.5, dtype=result.types[LOSS_SCALE].dtype.numpy)
    nodes = topological_order(result.graph.nodes)
    gradients = list(result.gradients.values())
    # Each node is given what NumPy's body is given, so that roundings do not add up on the way.
    values = dict(arrays)
    run_nodes(KernelContext(""), nodes, values, keep=[*arrays, *(n for node in nodes for n in node.outputs if n)])
    for node in nodes:
        inputs = [to_device(values[value]) if value else None for value in node.inputs]
        outputs = run_node(KernelContext("", xp=strict), node, inputs)
        for value, array in zip(node.outputs, outputs, strict=True):
            if value:
                _same(array, values[value], f"{node.op_type}: {value}")
    assert gradients


def test_the_stand_in_refuses_what_mixes() -> None:
    """The mechanism itself: without these refusals the tests above would pass over anything."""
    device, host = to_device(np.ones(3)), np.ones(3)
    for mix in (
        lambda: device + host,
        lambda: host + device,
        lambda: np.add(device, host),
        lambda: np.sum(device),
        lambda: np.asarray(device),
        lambda: strict.add(device, host),
        lambda: strict.concatenate([device, host]),
        lambda: bool(device[0] > 0),
        lambda: float(device[0]),
        lambda: (device.tolist,),
        lambda: device.__setitem__(0, host[:1]),
        lambda: strict.sum(device, where=True),
    ):
        with pytest.raises(TypeError):
            mix()
    for missing in ("errstate", "nditer_no_such"):
        with pytest.raises(AttributeError, match="CuPy has no"):
            getattr(strict, missing)
    with pytest.raises(HostMixError):
        device[host > 0]
    assert isinstance(strict.sum(device), StrictArray)
    assert strict_arrays.to_host(2 * device - 1).tolist() == [1, 1, 1]
