"""Kernels that may be part of a CUDA graph do the same work when it is launched again, on what lies there by then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cuda_on_host
from case_names import by_operator, named
from operator_cases import BACKWARD_CASES, differentiated_nodes
from weft_graph.ir import Node
from weft_graph.schema import schema_of
from weft_kernels.kernel import KernelContext, host_inputs, waits
from weft_kernels.run import run_node
from weft_worker.cuda_device import CudaDevice

pytest.importorskip("cupy", reason="the stand-in has CuPy's names; weft[cuda-compile] installs it")
import strict_cupy
from strict_arrays import StrictArray, own_kernels, to_device, to_host
from strict_cupy import StrictCupy

pytestmark = pytest.mark.skipif(
    cuda_on_host.why_not() is not None, reason=f"kernels cannot be run on this CPU: {cuda_on_host.why_not()}"
)
CASES = by_operator(BACKWARD_CASES)
OPERATORS = ("Conv", "MaxPool", "BatchNormalization", "LayerNormalization", "Gelu", "Gemm", "Softmax", "Einsum")


@pytest.fixture
def gpu() -> Iterator[tuple[CudaDevice, StrictCupy]]:
    with own_kernels(), strict_cupy.cuda_devices() as made:
        yield made()


@pytest.mark.parametrize("op_type", OPERATORS)
def test_what_is_captured_computes_with_other_numbers_the_next_time(
    op_type: str, gpu: tuple[CudaDevice, StrictCupy]
) -> None:
    captured = 0
    for name in CASES[op_type]:
        nodes, values = differentiated_nodes(BACKWARD_CASES[name], "float32")
        for node in nodes:
            if not waits(node) and not schema_of(node).random:
                with named(name):
                    _check(node, [values[value] if value else None for value in node.inputs], gpu)
                captured += 1
    assert captured > 0


def _check(node: Node, arrays: list[Any], gpu: tuple[CudaDevice, StrictCupy]) -> None:
    device, cupy = gpu
    on_host = host_inputs(node)

    def given(arrays: list[Any]) -> list[Any]:
        return [one if one is None or place in on_host else to_device(one) for place, one in enumerate(arrays)]

    def run(inputs: list[Any], step: int) -> list[Any]:
        return list(run_node(KernelContext(node.name, xp=cupy, step=step), node, inputs))

    made: list[Any] = []
    with device.use():
        inputs = given(arrays)
        run(inputs, 1)
        launch = device.capture(lambda: made.extend(run(inputs, 1)))
        assert launch is not None
        others = [_moved(one) for one in arrays]
        for one, other in zip(inputs, others, strict=True):
            if isinstance(one, StrictArray):
                one.held[...] = other
        launch()
        expected = run(given(others), 2)
    for array, wanted in zip(made, expected, strict=True):
        np.testing.assert_array_equal(to_host(array), to_host(wanted), err_msg=node.op_type)


def _moved(array: Any) -> Any:
    """The same numbers elsewhere, of those that are no index."""
    return array if array is None or array.dtype.kind != "f" else np.roll(array.reshape(-1), 1).reshape(array.shape)
