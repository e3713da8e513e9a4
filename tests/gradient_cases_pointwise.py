"""Cases of the operators that work element by element, and of products of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradient_case import GradientCase, Reference, floats, integers

_BROADCASTS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "same": ((2, 3), (2, 3)),
    "rows": ((4, 3), (3,)),
    "both": ((2, 1, 3), (4, 1)),
    "scalar": ((2, 3), ()),
    "zero_dim": ((), ()),
    "empty": ((0, 3), (3,)),
    "empty_stretched": ((0, 3), (1, 1)),
}


def elementwise_cases() -> list[GradientCase]:
    cases = []
    binary: dict[str, tuple[Reference, float]] = {
        "Add": (jnp.add, -2.0),
        "Sub": (jnp.subtract, -2.0),
        "Mul": (jnp.multiply, -2.0),
        "Div": (jnp.divide, 0.5),
        "Pow": (jnp.power, 0.5),
    }
    for op_type, (reference, low) in binary.items():
        for name, (left, right) in _BROADCASTS.items():
            inputs = (floats(*left, low=low), floats(*right, low=low, seed=1))
            cases.append(GradientCase(name, op_type, inputs, reference))
    unary: dict[str, tuple[Reference, float]] = {
        "Neg": (jnp.negative, -2.0),
        "Sqrt": (jnp.sqrt, 0.5),
        "Exp": (jnp.exp, -2.0),
        "Log": (jnp.log, 0.5),
        "Relu": (jax.nn.relu, -2.0),
        "Sigmoid": (jax.nn.sigmoid, -2.0),
        "Tanh": (jnp.tanh, -2.0),
        "Identity": (lambda x: x, -2.0),
    }
    for op_type, (reference, low) in unary.items():
        for shape in ((2, 3), (), (0, 2), (5,)):
            cases.append(GradientCase(f"shape{list(shape)}", op_type, (floats(*shape, low=low),), reference))
    for exponent in (0, 1, 2, -1):
        cases.append(
            GradientCase(
                f"exponent_{exponent}",
                "Pow",
                (floats(4, low=-2.0), integers(exponent)),
                lambda x, n=exponent: x ** jnp.float64(n),
            )
        )
    cases.append(GradientCase("base_0", "Pow", (np.array([0.0, 2.0]), np.array([2.0, 0.0])), jnp.power, smooth=False))
    cases.append(GradientCase("double", "Cast", (floats(2, 3),), lambda x: x, {"to": 11}))
    far = np.array([-800.0, 800.0, 0.0])
    cases.append(GradientCase("far", "Sigmoid", (far,), jax.nn.sigmoid, smooth=False))
    cases.append(GradientCase("at_zero", "Relu", (np.array([0.0, -1.0]),), jax.nn.relu, smooth=False))
    choice = np.array([[True], [False]])
    cases += [
        GradientCase("both", "Where", (choice, floats(2, 3), floats(3, seed=1)), lambda x, y: jnp.where(choice, x, y)),
        GradientCase(
            "one", "Where", (choice, floats(2, 3), floats(3)), lambda x: jnp.where(choice, x, 0), fixed=frozenset({2})
        ),
    ]
    return cases


def matrix_cases() -> list[GradientCase]:
    shapes = {
        "matrices": ((2, 3), (3, 4)),
        "vectors": ((3,), (3,)),
        "vector_matrix": ((3,), (3, 4)),
        "matrix_vector": ((2, 3), (3,)),
        "stack_matrix": ((5, 2, 3), (3, 4)),
        "matrix_stack": ((2, 3), (5, 3, 4)),
        "stacks": ((2, 1, 2, 3), (4, 3, 2)),
        "stack_vector": ((5, 2, 3), (3,)),
        "vector_stack": ((3,), (5, 3, 4)),
        "empty_batch": ((0, 3), (3, 4)),
        "empty_inner": ((2, 0), (0, 4)),
        "empty_stack": ((0, 2, 3), (3, 4)),
    }
    cases = [
        GradientCase(name, "MatMul", (floats(*left), floats(*right, seed=1)), jnp.matmul)
        for name, (left, right) in shapes.items()
    ]
    for bias in ((4,), (2, 1), (), (2, 4), None):
        for turned in ((0, 0), (1, 0), (0, 1), (1, 1)) if bias == (4,) else ((0, 1),):
            left = floats(3, 2) if turned[0] else floats(2, 3)
            right = floats(4, 3, seed=1) if turned[1] else floats(3, 4, seed=1)
            inputs = (left, right) if bias is None else (left, right, floats(*bias, seed=2))
            attributes = {"alpha": 0.5, "beta": 2.0 if bias != (4,) else 1.0, "transA": turned[0], "transB": turned[1]}
            name = f"bias{bias}_turned{turned}"
            cases.append(GradientCase(name, "Gemm", inputs, _gemm(attributes), attributes))
    cases.append(GradientCase("empty", "Gemm", (floats(0, 3), floats(3, 4), floats(4)), _gemm({})))
    return cases


def _gemm(attributes: Mapping[str, Any]) -> Reference:
    def reference(left: Any, right: Any, bias: Any = 0.0) -> Any:
        left = left.T if attributes.get("transA") else left
        right = right.T if attributes.get("transB") else right
        return attributes.get("alpha", 1.0) * (left @ right) + attributes.get("beta", 1.0) * bias

    return reference
