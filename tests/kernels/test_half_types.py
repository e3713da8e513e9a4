"""float16 and bfloat16: every operator gives its own type, and what float32 gives, rounded."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradient_cases import gradient_cases
from onnx_node_cases import NodeCase, cases_to_run
from operator_cases import differentiated_nodes
from weft_graph.ir import Node
from weft_graph.schema import formal_at, schemas
from weft_graph.types import DType
from weft_kernels.kernel import KernelContext
from weft_kernels.run import run_node

UNIT = {"float16": 2**-10, "bfloat16": 2**-7}
OF_ANOTHER_TYPE = {"BitCast", "Cast", "CastLike", "MelWeightMatrix"}
"""Operators that say themselves of what type their output is."""
DRAWN = {op_type for (_, op_type), schema in schemas().items() if schema.random}
SENSITIVE = {
    "Mod": "a rest jumps where the quotient is rounded over a whole number",
    "DeformConv": "places between elements, by which it reads, are rounded",
    "GridSample": "places between elements, by which it reads, are rounded",
    "RoiAlign": "places between elements, by which it reads, are rounded",
}
"""Operators whose values are not compared, since their inputs' own rounding counts for more than one of the output."""

CASES: dict[str, list[NodeCase]] = {}
for _case in cases_to_run().values():
    if any(array.dtype == np.float32 for array in _case.tensors.values() if isinstance(array, np.ndarray)):
        CASES.setdefault(_case.op_type, []).append(_case)


def _inputs(case: NodeCase, dtype: str) -> tuple[list[Any], list[Any]]:
    """(float32 inputs as `dtype` where the operator takes that, the same numbers as float32)."""
    schema, narrow, wide = schemas()["", case.op_type], [], []
    for place, name in enumerate(case.node.inputs):
        array = case.tensors[name] if name else None
        formal = formal_at(schema.inputs, place)
        assert formal is not None
        if array is not None and array.dtype == np.float32 and DType(dtype) in formal.dtypes:
            with np.errstate(over="ignore"):
                array = array.astype(dtype)
            wide.append(array.astype(np.float32))
        else:
            wide.append(array)
        narrow.append(array)
    return narrow, wide


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("op_type", sorted(set(CASES) - DRAWN - OF_ANOTHER_TYPE))
def test_an_operator_gives_its_type_rounded(op_type: str, dtype: str) -> None:
    for case in CASES[op_type]:
        narrow, wide = _inputs(case, dtype)
        if not any(array is not None and array.dtype.name == dtype for array in narrow):
            continue
        expected = run_node(KernelContext("node"), case.node, wide)
        given = run_node(KernelContext("node"), case.node, narrow)
        for place, (array, reference) in enumerate(zip(given, expected, strict=True)):
            what = f"{case.name}, output {place}"
            if reference.dtype != np.float32:
                assert array.dtype == reference.dtype, what
                continue
            assert array.dtype.name in {dtype, "float32"}, what
            assert array.dtype.name == dtype or place, what
            if op_type in SENSITIVE:
                continue
            with np.errstate(over="ignore"):
                rounded = reference.astype(dtype).astype(np.float32)
            scale = float(np.abs(rounded[np.isfinite(rounded)]).max(initial=1.0))
            np.testing.assert_allclose(
                array.astype(np.float32), rounded, rtol=2 * UNIT[dtype], atol=2 * UNIT[dtype] * scale, err_msg=what
            )


BACKWARD = {case.op_type: case for case in reversed(gradient_cases())}


@pytest.mark.parametrize("op_type", sorted(set(BACKWARD) - OF_ANOTHER_TYPE))
def test_gradients_of_bfloat16_are_bfloat16(op_type: str) -> None:
    """Forward and backward; what is computed from halves alone has their type, and no step fails."""
    _, values = differentiated_nodes(BACKWARD[op_type], "bfloat16")
    assert not any(array.dtype in (np.float16, np.float64) for array in values.values())
    assert any(array.dtype == ml_dtypes.bfloat16 for array in values.values())


@pytest.mark.parametrize("dtype", UNIT)
def test_sums_are_not_made_in_the_narrow_type(dtype: str) -> None:
    """4,096 ones make 4,096; a bfloat16 that grew by one each time would stay at 256, a float16 at 2,048."""
    ones = np.ones((1, 4096), dtype)
    for op_type, inputs in (
        ("ReduceSum", [ones]),
        ("MatMul", [ones, ones.T]),
        ("Gemm", [ones, ones.T]),
        ("ReduceL1", [ones]),
        ("ReduceSumSquare", [ones]),
        ("Einsum", [ones, ones]),
    ):
        attributes: dict[str, Any] = {"equation": "ij,ij->i"} if op_type == "Einsum" else {}
        names = tuple(f"in{place}" for place in range(len(inputs)))
        (made,) = run_node(KernelContext("node"), Node(op_type, "node", names, ("out",), attributes), inputs)
        assert made.dtype == np.dtype(dtype)
        assert made.astype(np.float64).item() == 4096, op_type
