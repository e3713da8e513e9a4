"""What schemas call pointwise is: parts of the arrays give parts of the result, to the bit, also beside numbers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from weft_graph.errors import GraphError
from weft_graph.infer import Inference
from weft_graph.ir import Node
from weft_graph.schema import OpSchema, schemas
from weft_graph.types import DType, array_type
from weft_kernels.kernel import KernelContext
from weft_kernels.run import run_node

POINTWISE = [schema for schema in schemas().values() if schema.pointwise]
SIZE, CUTS = 37, (0, 1, 5, 22, 37)
ATTRIBUTES: dict[str, dict[str, Any]] = {"BitShift": {"direction": "RIGHT"}, "Cast": {"to": 11}}


def dtypes(schema: OpSchema) -> list[str]:
    """Element types that every input takes which takes floats, else those that the first one takes."""
    floats = [dtype for dtype in (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64) if dtype in schema.inputs[0].dtypes]
    return [dtype.value for dtype in floats or sorted(schema.inputs[0].dtypes)[:2]]


def drawn(schema: OpSchema, dtype: str, shape: tuple[int, ...], place: int) -> np.ndarray:
    """Numbers of both signs, zeros and what is not finite among them."""
    formal = schema.inputs[min(place, len(schema.inputs) - 1)]
    wanted = dtype if DType(dtype) in formal.dtypes else sorted(formal.dtypes)[0]
    numbers = np.random.default_rng(place).standard_normal(shape) * 3
    if shape:
        numbers[:3] = (0.0, 1.0, -1.0)
    if wanted.startswith("float") and shape:
        numbers[3:6] = (np.nan, np.inf, -np.inf)
    with np.errstate(all="ignore"):
        return np.asarray(numbers > 0 if wanted == "bool" else numbers).astype(wanted)


CASES = [(schema, dtype) for schema in POINTWISE for dtype in dtypes(schema)]


@pytest.mark.parametrize(("schema", "dtype"), CASES, ids=[f"{schema.op_type}-{dtype}" for schema, dtype in CASES])
def test_parts_of_the_arrays_give_parts_of_the_result(schema: OpSchema, dtype: str) -> None:
    count = max(len(schema.inputs), 2 if schema.inputs[-1].variadic else 1)
    names = tuple(f"x{place}" for place in range(count))
    attributes = {**ATTRIBUTES.get(schema.op_type, {})}
    outputs = tuple(f"y{place}" for place in range(len(schema.outputs)))
    node = Node(schema.op_type, "node", names, outputs, attributes, schema.domain)
    ran = 0
    for numbers in ({}, *({place} for place in range(count)), set(range(1, count))):
        if len(numbers) == count or (schema.domain and 0 in numbers):
            continue  # a number alone has no parts; a gradient has the shape of its first inputs
        arrays = [drawn(schema, dtype, () if place in numbers else (SIZE,), place) for place in range(count)]
        inference = Inference({name: array_type(array) for name, array in zip(names, arrays, strict=True)})
        try:
            inference.add(node)
        except GraphError:
            continue  # some take no number in that place, some nothing else
        ran += 1
        whole = run_node(KernelContext(node="node"), node, arrays)[0]
        assert whole.shape == (SIZE,)
        parts = []
        for start, stop in pairwise(CUTS):
            cut = [array if array.ndim == 0 else array[start:stop] for array in arrays]
            parts.append(run_node(KernelContext(node="node"), node, cut)[0])
        assert np.concatenate(parts).tobytes() == whole.tobytes(), numbers
    assert ran


def test_what_element_by_element_means_is_said_of_every_arithmetic_operator() -> None:
    names = {schema.op_type for schema in POINTWISE}
    assert names >= {"Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Exp", "Log", "Where", "Cast", "Greater", "Abs", "Max"}
    assert not names & {"ReduceSum", "Softmax", "MatMul", "Dropout", "Transpose", "CumSum", "Gather"}
