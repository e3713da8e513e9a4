"""Every operator, forward and backward, over arrays that refuse what CuPy refuses: once on the module alone, once with
this project's CUDA kernels, run on the CPU. What the bodies give NumPy is compared with JAX and ONNX elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import cuda_on_host
from case_names import by_operator, named
from gradient_case import GradientCase
from onnx_node_cases import NodeCase, node_cases
from operator_cases import BACKWARD_CASES, NODE_NAMES, differentiated_nodes
from weft_kernels.kernel import KernelContext
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
WITH_KERNELS = {"Conv", "MaxPool", "SoftmaxCrossEntropyLoss", "Dropout"} | ONLY_WITH_KERNELS
"""Operators whose bodies, or whose gradients' bodies, start kernels of this project."""

Mode = str


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


def _check_forward(case: NodeCase) -> None:
    inputs = [case.tensors[value] if value else None for value in case.node.inputs]
    expected = run_node(KernelContext(""), case.node, inputs)
    device = [None if array is None else to_device(array) for array in inputs]
    outputs = run_node(KernelContext("", xp=strict), case.node, device)
    assert len(outputs) == len(expected)
    for place, (array, wanted) in enumerate(zip(outputs, expected, strict=True)):
        _same(array, wanted, f"output {place}")


BACKWARD_RUNS = _runs(BACKWARD, ("float16", "float32", "float64"))


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
