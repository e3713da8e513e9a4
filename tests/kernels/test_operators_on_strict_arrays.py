"""Every operator, forward and backward, over arrays that refuse what CuPy refuses: once on the module alone, once with
this project's CUDA kernels, run on the CPU. What the bodies give NumPy is compared with JAX and ONNX elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import cuda_on_host
from case_names import by_operator, named
from gradient_case import GradientCase
from onnx_node_cases import NodeCase, node_cases
from operator_cases import BACKWARD_CASES, NODE_NAMES, differentiated_nodes
from weft_graph.ir import Node, Subgraph
from weft_graph.schema import MemoryOrder, schema_of
from weft_kernels.cuda.module import has_kernels
from weft_kernels.kernel import KernelContext, allocates, host_inputs, kernel_of, waits
from weft_kernels.run import run_node

pytest.importorskip("cupy", reason="the stand-in has CuPy's names; weft[cuda-compile] installs it")
import strict_arrays
from strict_arrays import HostMixError, StrictArray, own_kernels, strict, to_device, to_host

TOLERANCE = {"bfloat16": (3e-2, 3e-2), "float16": (2e-2, 2e-2), "float32": (1e-5, 1e-6), "float64": (1e-12, 1e-13)}
ONLY_WITH_KERNELS = {"Gather", "Embedding", "RotaryEmbedding"} | {
    *("GatherElements", "GatherND", "ScatterElements", "ScatterND", "TopK", "Compress", "Unique"),
    *("GridSample", "DeformConv", "RoiAlign", "MaxRoiPool"),
}
"""Operators that sum what no array module sums in a fixed order, or whose gradients do."""
WITH_KERNELS = ONLY_WITH_KERNELS | {
    *("Conv", "MaxPool", "SoftmaxCrossEntropyLoss", "Dropout"),
    *("BatchNormalization", "LayerNormalization", "RMSNormalization"),
}
"""Operators whose bodies, or whose gradients' bodies, start kernels of this project."""


def _runs(operators: Iterable[str], dtypes: tuple[str, ...]) -> list[Any]:
    """(operator, element type, mode) of each run: every one on the module, those with kernels on kernels too."""
    runs = []
    for op_type in operators:
        if op_type not in ONLY_WITH_KERNELS:
            runs.append((op_type, "float32", "module"))
        if op_type in WITH_KERNELS:
            runs += [(op_type, dtype, "kernels") for dtype in dtypes]
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


FORWARD = by_operator({name: node_cases()[name] for name in NODE_NAMES})
BACKWARD = by_operator(BACKWARD_CASES)


@pytest.mark.parametrize(("op_type", "dtype", "mode"), _runs(FORWARD, ("float32",)), indirect=["mode"])
def test_forward_is_that_of_numpy(op_type: str, dtype: str, mode: str) -> None:
    for name in FORWARD[op_type]:
        with named(name):
            _check_forward(node_cases()[name])


def _placed_like(array: Any, node: Node) -> StrictArray:
    """A place for that output, in the order in which a plan has it where inputs are in rows."""
    if schema_of(node).order is MemoryOrder.CHANNELS and array.ndim > 1:
        return StrictArray(np.empty_like(array.swapaxes(0, 1), order="C").swapaxes(0, 1))
    return StrictArray(np.empty(array.shape, array.dtype))


def _check_facts(node: Node, inputs: list[Any], outputs: Sequence[Any]) -> None:
    """The kernel is run as a plan runs it on a GPU: what it reads on the host is there, and its outputs have places."""
    if schema_of(node).pointwise or cuda_on_host.why_not():
        return
    on_host = host_inputs(node)
    given = [to_host(each) if place in on_host and each is not None else each for place, each in enumerate(inputs)]
    placed = tuple(_placed_like(to_host(array), node) for array in outputs[: len(node.outputs)])
    kernel, attributes = kernel_of(node), schema_of(node).attributes_of(node)
    strict_arrays.met.clear()
    strict_arrays.allocated.clear()
    context = KernelContext(node.name, xp=strict, asked=node.outputs, placed=placed)
    with nullcontext() if has_kernels(strict) else own_kernels():
        made = kernel(context, given, attributes)
    if not waits(node):
        assert not strict_arrays.met
    if not allocates(node):
        assert not strict_arrays.allocated
    for place, (array, wanted) in enumerate(zip(made, outputs, strict=False)):
        _same(array, to_host(wanted), f"output {place}")


def _check_forward(case: NodeCase) -> None:
    inputs = [case.tensors[value] if value else None for value in case.node.inputs]
    expected = run_node(KernelContext(""), case.node, inputs)
    device = [None if array is None else to_device(array) for array in inputs]
    outputs = run_node(KernelContext("", xp=strict), case.node, device)
    assert len(outputs) == len(expected)
    for place, (array, wanted) in enumerate(zip(outputs, expected, strict=True)):
        _same(array, wanted, f"output {place}")
    _check_facts(case.node, device, outputs)


BACKWARD_RUNS = _runs(BACKWARD, ("float16", "float32"))


@pytest.mark.parametrize(("op_type", "dtype", "mode"), BACKWARD_RUNS, indirect=["mode"])
def test_backward_is_that_of_numpy(op_type: str, dtype: str, mode: str) -> None:
    for name in BACKWARD[op_type]:
        with named(name):
            _check_backward(BACKWARD_CASES[name], dtype)


def _check_backward(case: GradientCase, dtype: str) -> None:
    # Each node is given what NumPy's body is given, so that roundings do not add up on the way.
    nodes, values = differentiated_nodes(case, dtype)
    for node in nodes:
        inputs = [to_device(values[value]) if value else None for value in node.inputs]
        outputs = run_node(KernelContext("", xp=strict), node, inputs)
        for value, array in zip(node.outputs, outputs, strict=True):
            if value:
                _same(array, values[value], f"{node.op_type}: {value}")
        _check_facts(node, inputs, outputs)


def test_kernels_say_whether_they_wait_for_the_host() -> None:
    """Also with some inputs alone, and for what is in a body."""
    attention = ("q", "k", "v", "", "", "")
    inner = Subgraph(("x",), (), (Node("NonZero", "n", ("x",), ("y",)),), ("y",))
    assert not waits(Node("Attention", "n", attention, ("y",)))
    assert waits(Node("Attention", "n", (*attention, "counts"), ("y",)))
    assert waits(Node("SoftmaxCrossEntropyLoss", "n", ("scores", "labels"), ("loss", "log_prob")))
    assert not waits(Node("SoftmaxCrossEntropyLossGrad", "n", ("g", "log_prob", "labels"), ("y",), {}, "weft"))
    assert waits(Node("Fused", "n", ("x",), ("y",), {"body": inner}, "weft"))
    assert not allocates(Node("Gelu", "n", ("x",), ("y",)))
    assert allocates(Node("Einsum", "n", ("x",), ("y",)))


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
