"""What the passes go by is said in the schemas: which operators draw random numbers, and which commute."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from weft_graph.ir import Node, Subgraph
from weft_graph.schema import schemas
from weft_kernels.kernel import KernelContext
from weft_kernels.run import run_node


def test_every_operator_that_onnx_calls_random_is_marked() -> None:
    """But those that are so by their bodies, which the passes look into. An unmarked one would be merged."""
    random = onnx.defs.OpSchema.NodeDeterminism.NonDeterministic
    for (domain, op_type), schema in schemas().items():
        has_body = any(formal.kind is Subgraph for formal in schema.attributes.values())
        is_random = not domain and onnx.defs.get_schema(op_type).node_determinism == random
        if not has_body and op_type != "AffineGrid":  # ONNX calls it random, and it draws nothing
            assert schema.random == is_random, op_type


@pytest.mark.parametrize("op_type", sorted(o for (_, o), schema in schemas().items() if schema.commutative))
def test_operators_that_commute_give_the_same_bits(op_type: str) -> None:
    schema = schemas()["", op_type]
    draw = np.random.default_rng(1)
    tested = 0
    for dtype in ("bool", "int32", "uint8", "float16", "float32", "float64"):
        if dtype not in {each.value for each in schema.inputs[0].dtypes}:
            continue
        a, b = (draw.normal(scale=50, size=(40, 7)).astype(dtype) for _ in range(2))
        a.reshape(-1)[:3] = np.array([0, 1, 0]).astype(dtype)
        node = Node(op_type, "n", ("a", "b"), ("y",))
        (one,), (other,) = (run_node(KernelContext(""), node, pair) for pair in ((a, b[:1]), (b[:1], a)))
        assert one.tobytes() == other.tobytes(), dtype
        tested += 1
    assert tested
